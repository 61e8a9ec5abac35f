"""Rows of loaders that trackers get, in a real run."""

import json

from tests.system.scripts import run_without_torch

COLLECT = """
import json
from training_profiler import *
from training_profiler.runtime.outputs import Outputs

rows = []
Outputs.loader_row = lambda self, step, loaders: rows.append(
    [step, [[one.name, one.phase, one.batches, one.proportion] for one in loaders]]
)
start_training_profiling({settings})
main, aux, val = (profile_dataloader([0] * 6, name) for name in ("main", "aux", "val"))
main, aux = iter(main), iter(aux)
for step in range(6):
    for loader in (main, aux) if step % 3 == 2 else (main,):
        next(loader)
        with profile_section("forward_pass"):
            pass
    with profile_section("optimizer_step"):
        pass
    profile_step()
with profile_phase("validation"):
    for batch in val:
        pass
stop_training_profiling()
print("ROWS", json.dumps(rows))
"""


def rows_of(tmp_path, settings):
    outcome = run_without_torch(tmp_path, COLLECT.format(settings=settings))
    assert outcome.status == 0, outcome.stderr
    (line,) = [line for line in outcome.stdout.splitlines() if line.startswith("ROWS ")]
    return json.loads(line.removeprefix("ROWS "))


def test_rows_are_sent_at_optimizer_steps_and_the_rest_at_the_end(tmp_path):
    rows = rows_of(tmp_path, "sinks='jsonl', log_scalars_every_n_steps=3")
    assert rows == [
        [3, [["main", "train", 3, 0.75], ["aux", "train", 1, 0.25]]],
        [6, [["main", "train", 3, 0.75], ["aux", "train", 1, 0.25]]],
        [6, [["main", "train", 0, 0.75], ["aux", "train", 0, 0.25], ["val", "val", 6, None]]],
    ]


def test_nothing_is_computed_without_a_tracker(tmp_path):
    assert rows_of(tmp_path, "log_scalars_every_n_steps=3") == []
