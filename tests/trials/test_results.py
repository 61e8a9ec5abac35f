import json
from dataclasses import replace

import pytest

from training_profiler.trials.results import (
    APART,
    DIFFERS,
    FASTER,
    FILE,
    IDENTICAL,
    NOT_CONFIRMED,
    NOT_REPEATABLE,
    NOT_SHOWN,
    NOT_TRIED,
    SLOWER,
    UNKNOWN,
    LossComparison,
    Results,
    Row,
    as_data,
    best_of_each,
    compare_losses,
    load,
    save,
)
from training_profiler.trials.statistics import AGAIN, Effect

SAME, NEAR = LossComparison(IDENTICAL, None, 300), LossComparison(APART, 1e-7, 300)


def effect(relative, width=0.01):
    return Effect(relative, relative - width, relative + width, 0.001, 30)


WORKERS = Row(
    "num_workers=2", "num_workers", "DataLoader(num_workers=2)", FASTER,
    step_s=0.0249, effect=effect(-0.395), losses=SAME, where="train.py:41",
)  # fmt: skip
FUSED = Row(
    "fused", "fused", "optimizer(fused=True)", FASTER,
    step_s=0.0398, effect=effect(-0.034), losses=NEAR, where="train.py:52",
)  # fmt: skip
COMPILED = Row(
    "compile", "compile", "torch.compile(model)", SLOWER,
    step_s=0.044, effect=effect(0.068), losses=NEAR, warmup_s=38.0, compile_s=38.0, recompilations=2,
    where="train.py:48",
)  # fmt: skip
PINNED = Row("pin_memory", "pin_memory", "DataLoader(pin_memory=True)", NOT_TRIED, reason="no accelerator")
CONTROL = Row(AGAIN, "", AGAIN, NOT_SHOWN, step_s=0.0413, effect=effect(0.002), losses=SAME)
TOGETHER = Row(
    "all together", "", "all that helped, together", FASTER, step_s=0.0231, effect=effect(-0.439), losses=NEAR
)
RESULTS = Results(
    "train.py", 252.0, (WORKERS, FUSED, COMPILED, PINNED), 0.0412, CONTROL, TOGETHER, ("num_workers=2", "fused"), 300,
    12_000,
)  # fmt: skip


def test_results_are_read_back_from_the_run_folder(tmp_path):
    assert load(tmp_path) is None
    save(tmp_path, replace(RESULTS, rows=()))
    save(tmp_path, RESULTS)
    assert load(tmp_path) == RESULTS


def test_results_that_version_0_2_wrote_are_read(tmp_path):
    save(tmp_path, RESULTS)
    text = (tmp_path / FILE).read_text()
    old = {"unchanged_step_s": "unchanged_s", "remaining": "left", "max_difference": "apart", "p_value": "faster_p"}
    for name, old_name in old.items():
        assert f'"{name}"' in text
        text = text.replace(f'"{name}"', f'"{old_name}"')
    (tmp_path / FILE).write_text(text.replace('"schema": 2', '"schema": 1'))
    assert load(tmp_path) == RESULTS


def test_an_interval_without_bounds_is_json_and_comes_back(tmp_path):
    row = replace(WORKERS, effect=Effect(-0.4, -float("inf"), float("inf"), 0.5, 3))
    save(tmp_path, replace(RESULTS, rows=(row,)))
    data = json.loads((tmp_path / FILE).read_text(), parse_constant=lambda name: pytest.fail(name))
    assert data["rows"][0]["losses"] == {"kind": "identical", "max_difference": None, "steps": 300, "first_step": 0}
    assert data["rows"][0]["verdict"] == "faster"
    found = load(tmp_path)
    assert found is not None
    assert found.rows == (row,)


def with_value(name, value):
    data = as_data(RESULTS)
    data["rows"][0][name] = value
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"[1]", b'{"rows": [{"name": 1}]}', b'{"rows": 3}', b"\xff"),
        *(with_value("verdict", 5), with_value("step_s", "fast")),
        with_value("effect", {"low": -1, "high": 1, "relative": "much"}),
    ],
)
def test_a_line_that_is_damaged_or_has_a_value_of_another_kind_is_passed_over(tmp_path, line):
    save(tmp_path, RESULTS)
    with open(tmp_path / FILE, "ab") as file:
        file.write(line + b"\n")
    assert load(tmp_path) == RESULTS


def test_of_a_family_or_of_changes_that_exclude_each_other_the_fastest_is_part_of_all_together():
    four = replace(WORKERS, name="num_workers=4", effect=effect(-0.3))
    foreach = replace(FUSED, name="foreach", family="foreach", effect=effect(-0.02))
    assert best_of_each([foreach, FUSED, four, WORKERS], [("fused", "foreach")]) == [WORKERS, FUSED]


def test_the_edit_has_what_does_most_together_or_alone():
    assert RESULTS.best_names == ("num_workers=2", "fused")
    assert replace(RESULTS, together=replace(TOGETHER, effect=effect(-0.1))).best_names == ("num_workers=2",)
    of_one = replace(RESULTS, rows=(WORKERS, replace(FUSED, verdict=NOT_CONFIRMED)))
    assert (of_one.unconfirmed, of_one.best_names) == (("fused",), ("num_workers=2",))
    small = tuple(replace(row, verdict=NOT_CONFIRMED) for row in (WORKERS, FUSED))  # too small alone
    assert replace(RESULTS, rows=small).best_names == ("num_workers=2", "fused")


def test_ceilings_and_changes_of_the_numerics_are_never_the_best():
    ceiling = replace(WORKERS, name="one_batch", is_ceiling=True, step_s=0.001)
    autocast = replace(WORKERS, name="autocast", changes_numerics=True, step_s=0.002)
    assert replace(RESULTS, rows=(ceiling, autocast, FUSED), together=None).best == FUSED
    assert replace(RESULTS, rows=(ceiling, COMPILED), together=None).best is None


def losses(*values):
    return [[float(value).hex()] for value in values]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changed", "unchanged", "kind", "text"),
    [
        ([1, 2], [1, 2, 3], IDENTICAL, "identical"),  # as far as both ran
        ([1, 2 * (1 - 1e-7)], [1, 2], APART, "1e-7 apart"),
        ([1, 2 * (1 - 2e-16)], [1, 2], APART, "2e-16 apart"),
        ([1, 2 * (1 - 3e-2)], [1, 2], DIFFERS, "differs (3e-2)"),
        ([1 + 1e-7 * 2**i for i in range(30)], [1] * 30, APART, "5e-5 apart"),  # rounding that grows
        ([1, 1, 1, 1.5], [1, 1, 1, 1], DIFFERS, "differs (3e-1)"),  # after an equal first epoch
        ([NAN], [NAN], IDENTICAL, "identical"),
        ([NAN], [1], DIFFERS, "differs"),
        ([INF], [1], DIFFERS, "differs"),
    ],
)
def test_a_small_first_difference_is_rounding_and_any_other_differs(changed, unchanged, kind, text):
    found = compare_losses(losses(*changed), losses(*unchanged), losses(*unchanged))
    assert (found.kind, str(found)) == (kind, text)


def test_two_unchanged_trainings_that_differ_or_no_losses_leave_no_comparison():
    found = compare_losses(losses(1, 2.1), losses(1, 2), losses(1, 2.2))
    assert (found.kind, str(found), found.steps) == (NOT_REPEATABLE, "not repeatable", 2)
    assert compare_losses([["0x1p+0", "0x1p+0"]], losses(1), losses(1)).kind == DIFFERS  # another number of losses
    assert compare_losses([[], []], [[], []], [[], []]).kind == UNKNOWN
