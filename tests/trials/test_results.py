import json
from dataclasses import replace

import pytest

from training_profiler.trials.results import (
    APART,
    FASTER,
    FILE,
    IDENTICAL,
    NOT_CONFIRMED,
    NOT_SHOWN,
    NOT_TRIED,
    SLOWER,
    LossComparison,
    Results,
    Row,
    as_data,
    best_of_each,
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
    "compile", "compile", "model.compile()", SLOWER,
    step_s=0.044, effect=effect(0.068), losses=NEAR, warmup_s=38.0, where="train.py:48",
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
    save(tmp_path, replace(RESULTS, rows=()))
    save(tmp_path, RESULTS)
    assert load(tmp_path) == RESULTS


def test_an_interval_without_bounds_is_json_and_comes_back(tmp_path):
    row = replace(WORKERS, effect=Effect(-0.4, -float("inf"), float("inf"), 0.5, 3))
    save(tmp_path, replace(RESULTS, rows=(row,)))
    json.loads((tmp_path / FILE).read_text(), parse_constant=lambda name: pytest.fail(name))
    found = load(tmp_path)
    assert found is not None
    assert found.rows == (row,)


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b'{"rows": [{"name": 1}]}', b'{"rows": 3}', b"\xff"])
def test_a_damaged_line_is_passed_over(tmp_path, line):
    save(tmp_path, RESULTS)
    with open(tmp_path / FILE, "ab") as file:
        file.write(line + b"\n")
    assert load(tmp_path) == RESULTS


@pytest.mark.parametrize(
    ("name", "value"), [("verdict", 5), ("step_s", "fast"), ("effect", {"low": -1, "high": 1, "relative": "much"})]
)
def test_a_line_with_a_value_of_another_kind_is_passed_over(tmp_path, name, value):
    data = as_data(RESULTS)
    data["rows"][0][name] = value
    (tmp_path / FILE).write_text(json.dumps(data) + "\n")
    assert load(tmp_path) is None


def test_a_folder_where_nothing_was_tried_has_no_results(tmp_path):
    assert load(tmp_path) is None


def test_of_two_numbers_of_workers_the_faster_is_part_of_all_together():
    four = replace(WORKERS, name="num_workers=4", effect=effect(-0.3))
    assert best_of_each([FUSED, four, WORKERS]) == [WORKERS, FUSED]


def test_changes_that_exclude_each_other_are_not_together():
    foreach = replace(FUSED, name="foreach", family="foreach", effect=effect(-0.02))
    assert best_of_each([foreach, FUSED, WORKERS], [("fused", "foreach")]) == [WORKERS, FUSED]


def test_one_change_may_do_more_than_all_together():
    worse = replace(TOGETHER, effect=effect(-0.1))
    assert replace(RESULTS, together=worse).best_names == ("num_workers=2",)
    assert RESULTS.best_names == ("num_workers=2", "fused")


def test_where_one_change_is_confirmed_the_edit_has_that_one_alone():
    unconfirmed = replace(RESULTS, rows=(WORKERS, replace(FUSED, verdict=NOT_CONFIRMED)))
    assert unconfirmed.unconfirmed == ("fused",)
    assert unconfirmed.best_names == ("num_workers=2",)


def test_changes_may_help_together_that_are_too_small_alone():
    small = [replace(row, verdict=NOT_CONFIRMED) for row in (WORKERS, FUSED)]
    assert replace(RESULTS, rows=tuple(small)).best_names == ("num_workers=2", "fused")


def test_ceilings_and_changes_of_the_numerics_are_never_the_best():
    ceiling = replace(WORKERS, name="one_batch", is_ceiling=True, step_s=0.001)
    autocast = replace(WORKERS, name="autocast", changes_numerics=True, step_s=0.002)
    assert replace(RESULTS, rows=(ceiling, autocast, FUSED), together=None).best == FUSED
    assert replace(RESULTS, rows=(ceiling, COMPILED), together=None).best is None


def test_json_has_the_verdicts():
    data = as_data(RESULTS)
    assert [row["verdict"] for row in data["rows"]] == ["faster", "faster", "slower", "not tried"]
    assert data["rows"][0]["losses"] == {"kind": "identical", "apart": None, "steps": 300}
