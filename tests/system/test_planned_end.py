"""``--for`` and ``--stop-when-sure`` end a training as Ctrl-C does, with status 0 if the program leaves it at that."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system.launching import execute, execute_forked, start_ranks, through_run
from tests.system.scripts import ROOT, Outcome, environment, finish, run_without_torch

TRAIN = """
import signal, sys, threading
from training_profiler import *
start_training_profiling(log_every=0)
def train(steps=10**9):
    for step in range(steps):
        with profile_section("forward_pass"):
            sum(range(1000))
        profile_step()
def save(status):
    print("checkpoint saved")
    sys.exit(status)
"""
SAVES = "try: train()\nexcept KeyboardInterrupt: save(%s)"


def run(cwd: Path, ending: str, **variables: str) -> Outcome:
    given = {f"RECTIFIED_FLOW_PROFILE_{name}": value for name, value in variables.items()}
    return run_without_torch(cwd, TRAIN + ending + "\n", variables=given)


@pytest.mark.parametrize(
    ("ending", "status", "complaint", "ended_by"),
    [
        ("train()", 0, "", "--for 20steps"),
        (SAVES % 0, 0, "", "--for 20steps"),
        (SAVES % 4, 4, "", "--for 20steps"),
        ("try: train()\nexcept KeyboardInterrupt: print('checkpoint saved'); raise", 0, "", "--for 20steps"),
        ("try: train()\nfinally: stop_training_profiling()", 0, "", "--for 20steps"),
        ("try: train()\nexcept KeyboardInterrupt: 1 / 0", 1, "ZeroDivisionError", "ZeroDivisionError"),
        ("signal.signal(signal.SIGINT, lambda *_: save(7)); train()", 7, "", "--for 20steps"),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN); train()", 0, "", "--for 20steps"),
        ("thread = threading.Thread(target=train); thread.start(); thread.join()", 0, "", "--for 20steps"),
        ("import asyncio\nasync def main(): train()\nasyncio.run(main())", 0, "", "--for 20steps"),
    ],
)
def test_the_program_decides_how_it_ends(
    tmp_path: Path, ending: str, status: int, complaint: str, ended_by: str
) -> None:
    ended = run(tmp_path, ending, FOR="20steps")
    assert (ended.status, complaint in ended.stderr, "Traceback" in ended.stderr) == (status, True, bool(complaint))
    assert (ended.summaries, ended.report["steps"], ended.report["ended_by"]) == (1, 20, ended_by)
    assert ended.stdout.count("Profiler: ending the training after 20 steps, as --for 20steps asked\n") == 1
    assert ended.stdout.count("checkpoint saved") == ("save" in ending)


@pytest.mark.parametrize(
    ("variables", "option"), [({"FOR": "0.01s"}, "--for 0.01s"), ({"STOP_WHEN_SURE": "1"}, "--stop-when-sure")]
)
def test_it_ends_by_time_and_when_the_first_finding_is_sure(
    tmp_path: Path, variables: dict[str, str], option: str
) -> None:
    ended = run(tmp_path, "train()", **variables)
    assert (ended.status, ended.stderr, ended.report["ended_by"]) == (0, "", option)
    assert f", as {option} asked" in ended.stdout


def test_a_program_that_goes_on_ends_at_its_own_will(tmp_path: Path) -> None:
    ended = run(tmp_path, "try: train()\nexcept KeyboardInterrupt: train(30)", FOR="20steps")
    assert (ended.status, ended.stderr, ended.report["steps"], ended.report["ended_by"]) == (0, "", 50, None)
    said = "the training caught the interrupt of --for 20steps and goes on; it ends at its own will"
    assert ended.stdout.count(f"Profiler: {said}\n") == 1
    assert said in ended.report["health"]["notes"]


TRAINING = """
import os, time, torch
import tests.chaos.programs.without_dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(OPTIMIZERS)]
step = 0
for inputs, targets in DataLoader(TensorDataset(torch.randn(STEPS, 8), torch.randn(STEPS, 1)), num_workers=WORKERS):
    loss = ((model(inputs) - targets) ** 2).mean()
    print(f"loss {step} {loss.item().hex()}", flush=True)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad()
    time.sleep(0.002)  # its end waits for steps, and not for their work
    step += 1
"""


LIMITS = {f"--for {limit}": {"RECTIFIED_FLOW_PROFILE_FOR": limit} for limit in ("20steps", "1s")}


def write_training(cwd: Path, steps: int, workers: int = 0, optimizers: int = 1) -> str:
    text = TRAINING.replace("STEPS", str(steps)).replace("WORKERS", str(workers))
    (cwd / "train.py").write_text(text.replace("OPTIMIZERS", str(optimizers)))
    return "train.py"


def losses(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("loss ")]


@pytest.mark.programs
@pytest.mark.parametrize(("workers", "optimizers"), [(0, 1), (2, 1), (0, 2)])
def test_losses_are_the_same_up_to_the_end(tmp_path: Path, workers: int, optimizers: int) -> None:
    script = write_training(tmp_path, 60, workers, optimizers)
    plain = execute_forked(tmp_path, script, is_profiled=False)
    if workers:  # once as it is typed
        cut = execute(tmp_path, through_run("--for", "20steps", "--quiet", script), pythonpath=str(ROOT))
    else:
        cut = execute_forked(tmp_path, script, **LIMITS["--for 20steps"])
    assert (cut.status, cut.stderr) == (0, "")
    # With several optimizers, the end of a step is known when the next one has begun.
    assert losses(cut.stdout) == losses(plain.stdout)[: 20 + optimizers - 1]
    assert Outcome(*cut, tmp_path).report["steps"] == 20


@pytest.mark.programs
@pytest.mark.parametrize("limit", ["--for 1s", "--stop-when-sure"])
def test_ranks_end_after_the_same_step(tmp_path: Path, limit: str) -> None:
    script = write_training(tmp_path, 10**6)
    given = LIMITS.get(limit) or {"RECTIFIED_FLOW_PROFILE_STOP_WHEN_SURE": "1"}
    ranks = start_ranks(tmp_path, [script], 2, environment(None, **given))
    with ThreadPoolExecutor() as readers:  # a rank waits where its output is not read, and the others for it
        ended = list(readers.map(lambda rank: finish(rank, tmp_path), ranks))
    assert [each.status for each in ended] == [0] * len(ended), ended[0].stderr
    assert not any("Traceback" in each.stderr for each in ended)
    report = Outcome(0, "", "", tmp_path).report
    assert len({rank["steps"] for rank in report["ranks"]["ranks"]}) == 1
    assert [rank["ended_by"] for rank in report["ranks"]["ranks"]] == [None, None]
    assert report["ended_by"] == limit
