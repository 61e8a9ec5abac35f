"""The result of a benchmark as text and as data: what both say is in a golden file."""

import json
from dataclasses import replace
from pathlib import Path

from tests.support.golden import assert_answers, assert_golden
from training_profiler.component_benchmark.result import (
    ComponentBenchmark,
    MeasuredModule,
    Timing,
    components_as_data,
    names_text,
    render_components,
)


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
NOISY = ComponentBenchmark(
    source="m:f", kind="GPT", parameters=12345, device="cpu", dtype="float32", mode="train", threads=2, torch="2.13.0",
    passes={"forward": Timing(1.18e-3, 1e-5, 9), "optimizer step": Timing(3e-4)}, loss="cross entropy", root=ROOT,
    optimizer="AdamW", never_called=(("blocks.0.spare", "Linear"), ("blocks.1.spare", "Linear")), notes=("said",),
)  # fmt: skip
TENTH = Timing(1e-3, 1e-4, 9)  # not noisy yet
QUIET = replace(
    NOISY, threads=1, passes={"forward": TENTH}, root=component("Linear", "", forward=TENTH), never_called=(), notes=()
)


def test_what_is_said_of_each_benchmark_is_as_before():
    texts = [
        f"{render_components(benchmark)}{json.dumps(components_as_data(benchmark), allow_nan=False)}\n"
        for benchmark in (NOISY, QUIET)
    ]
    assert_golden(Path(__file__).parents[1] / "golden" / "components.txt", "\n".join(texts))


def test_names_are_shortened():
    assert_answers("module_names", lambda line: names_text(line.split()))
    assert names_text([""]) == ""
