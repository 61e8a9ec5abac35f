import json

import pytest

from training_profiler.component_benchmark.report import components_as_data, names_text, render_components
from training_profiler.component_benchmark.result import ComponentBenchmark, MeasuredModule, Timing


def component(kind: str, *names: str, forward: Timing | None, **more) -> MeasuredModule:
    given = {"inputs": "8x4", "calls": len(names), "parameters": 3, "backward": None, "note": None}
    given |= {"share_of_parent": None, "share_of_model": None, "rest_s": None}
    return MeasuredModule(kind, names, forward=forward, **(given | more))


ATTENTION = component(
    "Attention", "blocks.0.attention", "blocks.1.attention", forward=Timing(470e-6, 5e-6, 50, 4),
    share_of_parent=0.85, share_of_model=0.8, backward=Timing(900e-6, 450e-6, 9),
)  # fmt: skip
BLOCK = component(
    "Block", "blocks.0", "blocks.1", forward=Timing(553e-6, 5e-6, 50, 4), share_of_parent=0.94, share_of_model=0.94,
    children=(ATTENTION,), rest_s=83e-6,
)  # fmt: skip
ROOT = component("GPT", "", forward=Timing(1.18e-3, 1e-5, 9), share_of_model=1.0, children=(BLOCK,), rest_s=1e-5)
BENCHMARK = ComponentBenchmark(
    source="m:f", kind="GPT", parameters=12345, device="cpu", dtype="float32", mode="train", threads=2, torch="2.13.0",
    passes={"forward": Timing(1.18e-3, 1e-5, 9), "optimizer step": Timing(3e-4)}, loss="cross entropy", root=ROOT,
    optimizer="AdamW", never_called=(("blocks.0.spare", "Linear"), ("blocks.1.spare", "Linear")), notes=("said",),
)  # fmt: skip


def lines() -> list[str]:
    return render_components(BENCHMARK).splitlines()


def test_title_names_the_model_and_its_surroundings():
    title = "GPT of m:f: 12,345 parameters, float32 on cpu, train mode, 2 threads, torch 2.13.0"
    assert " ".join(lines()[1:3]) == title


def test_row_has_calls_inputs_times_spreads_and_shares():
    ((i, row),) = [(i, line.split()) for i, line in enumerate(lines()) if line.lstrip().startswith("attention ")]
    assert row == ["attention", "2", "0.47", "1.1%", "85.0%", "80.0%", "0.9", "~50.0%"]
    assert lines()[i + 1].strip() == "Attention, inputs 8x4"


def test_components_are_indented_below_their_parent():
    rows = [line for line in lines() if line.lstrip().startswith(("GPT  ", "blocks.*  ", "attention  ", "(in no"))]
    assert [len(row) - len(row.lstrip()) for row in rows] == [0, 2, 4, 4]


def test_time_outside_modules_has_a_row_from_5_percent():
    (row,) = [line.split() for line in lines() if "(in no module)" in line]
    assert row == ["(in", "no", "module)", "2", "0.083", "15.0%", "14.1%"]


def test_heaviest_path_is_named():
    (i,) = [i for i, line in enumerate(lines()) if line.startswith("Heaviest")]
    assert lines()[i : i + 2] == [
        "Heaviest: blocks.* (Block) 2 calls of 0.553 ms, 94% of its GPT; attention",
        "  (Attention) 2 calls of 0.47 ms, 85% of its Block",
    ]


def test_notes_name_uncalled_noisy_and_unknown_rows():
    text = render_components(BENCHMARK)
    assert "\n- said\n- never called, so not timed: blocks.*.spare (Linear)\n- noisy, marked ~: " in text
    assert "\n- too few measurements for a spread, marked ?" in text


def test_quiet_benchmark_does_not_mention_noise():
    quiet = component("Linear", "", forward=Timing(1e-3, 1e-4, 9), share_of_model=1.0)
    plain = ComponentBenchmark(
        "m:f", "Linear", 3, "cpu", "float32", "eval", 1, "2.13.0", {"forward": Timing(1e-3, 1e-4, 9)}, "x", quiet, "y"
    )
    assert "noisy" not in render_components(plain)  # exactly 10% is not noisy yet
    assert "1 thread," in render_components(plain)


def test_data_has_seconds_and_null_if_unknown():
    data = json.loads(json.dumps(components_as_data(BENCHMARK), allow_nan=False))
    assert (data["schema"], data["source"], data["never_called"][0]) == (1, "m:f", {"name": "blocks.0.spare", "kind": "Linear"})  # fmt: skip # noqa: E501
    assert data["passes"]["optimizer step"]["iqr_s"] is None
    (block,) = data["root"]["children"]
    assert (block["kind"], block["calls"], block["backward"], block["forward"]["median_s"]) == (
        "Block",
        2,
        None,
        553e-6,
    )
    assert block["total_s"] == pytest.approx(1.106e-3)
    assert block["children"][0]["backward"] == {
        "median_s": 900e-6, "iqr_s": 450e-6, "measurements": 9, "runs_each": 1, "is_noisy": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["blocks.0", "blocks.1"], "blocks.*"),
        (["layer1.0", "layer1.1"], "layer1.*"),
        (["0", "0"], "0"),
        (["norm1", "norm2"], "norm1, norm2"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
        ([""], ""),
    ],
)
def test_names_are_shortened(names, text):
    assert names_text(names) == text
