"""Interpreter options, ways to start a program, and other tools beside the profiler: none harms another."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.chaos.neighbours import (
    PROGRAMS,
    REPORT,
    STEPS,
    TRAINING,
    Both,
    assert_same,
    both_forked,
    execute,
    plain_losses,
    python,
    reported_steps,
)
from tests.system.launching import execute_forked, start_in_fork, start_ranks, through_run
from tests.system.scripts import environment, finish, write_script

pytestmark = pytest.mark.chaos


def under_profiler(cwd: Path, command: list[str], **options: object) -> Both:
    """Run ``command`` under the profiler only, and compare it with the training's own output."""
    on = execute(cwd, command, True, **options)
    return Both(on._replace(status=0, stdout=plain_losses()), on, reported_steps(cwd))


RUNNERS = {
    "runpy": "import runpy; runpy.run_path({path!r}, run_name='__main__')",
    "cells": """
namespace = {{"__name__": "__main__"}}
for cell in (open({path!r}).read().split("def main")[0], "losses = train()", "print(len(losses), *losses)"):
    exec(compile(cell, "<ipython-input>", "exec"), namespace)
""",
    "thread": """
import threading, small_training
thread = threading.Thread(target=small_training.main); thread.start(); thread.join()
""",
    "asyncio": """
import asyncio, small_training
async def main(): small_training.main()
asyncio.run(main())
""",
    "trace function": "import sys, small_training as t; t.warm_up(); sys.settrace(lambda *_: None); t.main()",
    "profile function": "import sys, small_training as t; t.warm_up(); sys.setprofile(lambda *_: None); t.main()",
    "tracemalloc": "import tracemalloc, small_training as t; t.warm_up(); tracemalloc.start(5); t.main()",
    "interpreter": """
import gc, sys, small_training as t
t.warm_up()
gc.disable(); gc.set_threshold(1); gc.freeze()
sys.setswitchinterval(1e-6); sys.addaudithook(lambda *_: None); sys.setrecursionlimit(200)
t.main()
""",
    "alarm": """
import signal, small_training
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01); small_training.main()
signal.setitimer(signal.ITIMER_REAL, 0)
""",
}


# Not -X tracemalloc, under which importing torch takes a minute.
WAYS: dict[str, list[str]] = {
    options: python(*options.split(), TRAINING)
    for options in ("-B -u -s -X importtime", "-OO -X dev -X faulthandler", "-W error")
} | {
    "text": python("-c", "import small_training; small_training.main()"),
    "module": python("-m", "small_training"),
    "zip": python("app.zip"),
    "cProfile": python("-m", "cProfile", "-o", "profile.out", TRAINING),
}


@pytest.mark.parametrize("how", RUNNERS)
def test_program_is_profiled_and_unchanged_whatever_calls_it(tmp_path: Path, how: str) -> None:
    (tmp_path / "runner.py").write_text(RUNNERS[how].format(path=str(TRAINING)))
    ended = execute_forked(tmp_path, "runner.py", PYTHONPATH=str(PROGRAMS), **REPORT)
    assert (ended.status, ended.stdout) == (0, plain_losses()), ended.stderr
    assert reported_steps(tmp_path) == STEPS, ended.stderr


@pytest.mark.parametrize("way", WAYS)
def test_program_is_profiled_and_unchanged_however_it_is_run(tmp_path: Path, way: str) -> None:
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(TRAINING, "__main__.py")
    assert_same(under_profiler(tmp_path, WAYS[way]))
    assert way != "cProfile" or (tmp_path / "profile.out").stat().st_size > 1000


def test_program_read_from_stdin_is_profiled(tmp_path: Path) -> None:
    with TRAINING.open() as script:
        assert_same(under_profiler(tmp_path, python("-"), stdin=script))


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONWARNINGS": "error"},
        {"PYTHONOPTIMIZE": "2", "PYTHONDEVMODE": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
        {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids="-".join,
)
def test_variables_of_python_change_nothing(tmp_path: Path, variables: dict[str, str]) -> None:
    assert_same(under_profiler(tmp_path, python(TRAINING), variables=variables))


def test_without_site_nothing_is_measured_and_a_line_says_so(tmp_path: Path) -> None:
    option = "-S"  # which leaves out the start-up file; -I and -E do not
    code = "import sys; sys.path[:0] = sys.argv[1:]; import small_training; small_training.train(); print('trained')"
    # Without `site` torch is not found.
    site = [path for path in sys.path if path.endswith("site-packages")]
    ended = execute(tmp_path, python(option, "-c", code, PROGRAMS, *site), True)
    assert (ended.status, ended.stdout) == (0, "trained\n"), ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert option in ended.stderr
    assert reported_steps(tmp_path) is None


def test_training_in_a_test_of_pytest_is_profiled(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(
        "import small_training\ndef test_losses():\n    assert len(small_training.train()) == 20\n"
    )
    ended = execute(tmp_path, python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_training.py"), True)
    assert ended.status == 0, ended.stdout
    assert reported_steps(tmp_path) == STEPS


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
@pytest.mark.parametrize("ending", ["", "raise RuntimeError('planted')"], ids=["works", "raises"])
def test_own_start_up_module_runs_as_alone(tmp_path: Path, name: str, ending: str) -> None:
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / f"{name}.py").write_text(f"import sys\nsys.custom = {name!r}\n{ending}\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, small_training\nprint(sys.custom)\nsmall_training.main()\n")
    stand_in = tmp_path / "stand_in"  # in the training's place without us: the rest is about the start
    stand_in.mkdir()
    (stand_in / "small_training.py").write_text(f"def main(): print({plain_losses()!r}, end='')\n")
    # usercustomize needs the user's site folder, which virtual environments switch off.
    runs = python(script) if name == "sitecustomize" else python("-c", f"import {name}\nexec(open('script.py').read())")
    if name == "usercustomize" and ending:
        runs = python("-c", f"try: import {name}\nexcept RuntimeError: pass\nexec(open('script.py').read())")
    off, on = (
        execute(tmp_path, runs, is_on, variables={"PYTHONPATH": os.pathsep.join([str(folder), str(training)])})
        for is_on, training in ((False, stand_in), (True, PROGRAMS))
    )
    assert on.stdout == f"{name}\n{plain_losses()}"
    assert_same(Both(off, on, reported_steps(tmp_path)))
    assert ("planted" in on.stderr) == ("planted" in off.stderr)


CLOSED = {"stdin": 0, "stdout": 1, "stderr": 2}


@pytest.mark.parametrize("closed", [["stdin"], ["stdout"], ["stderr"], ["stdout", "stderr"], [*CLOSED]], ids="-".join)
def test_closed_streams_change_nothing(tmp_path: Path, closed: list[str]) -> None:
    redirects = " ".join(f"{CLOSED[name]}>&-" for name in closed)
    code = "import small_training; open('losses', 'w').write(str(small_training.train()))"
    shell = ["sh", "-c", f'exec "$@" {redirects}', "sh"]
    on = subprocess.run(
        [*shell, *through_run("-c", code)],
        cwd=tmp_path,
        env=environment(None, PYTHONPATH=str(PROGRAMS)),
        timeout=240,
        capture_output=True,
    )
    assert on.returncode == 0, on.stderr
    losses = [float(word) for word in plain_losses().split()[1:]]
    assert (tmp_path / "losses").read_text() == str(losses)
    assert reported_steps(tmp_path) == STEPS


def test_reader_that_closes_the_pipe_early_changes_nothing(tmp_path: Path) -> None:
    # The report is longer than a line; the training has printed before.
    words = through_run("-c", "import small_training; print('first', flush=True); small_training.train()")
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment(None, PYTHONPATH=str(PROGRAMS)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert reported_steps(tmp_path) == STEPS


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers_compute_the_same(tmp_path: Path, method: str) -> None:
    assert_same(under_profiler(tmp_path, python(TRAINING, "1", method)))


CRASHES = {
    "segmentation fault": "ctypes.string_at(0)",
    "os._exit": "os._exit(3)",
    "exception": "raise ValueError('planted')",
    "SIGKILL": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("crash", CRASHES)
def test_crashing_loader_worker_ends_the_training_as_alone(tmp_path: Path, crash: str) -> None:
    script = f"""
import ctypes, os, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        if i == 40: {CRASHES[crash]}
        return torch.ones(4)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in DataLoader(Rows(), 4, num_workers=1):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    print("step", flush=True)
"""
    outcome = both_forked(tmp_path, script)
    assert outcome.on.status == outcome.off.status != 0
    assert set(outcome.on.stdout.splitlines()) == {"step"}
    # The message may be missing, also without the profiler: the SIGCHLD handler of torch raises while Python prints.
    assert "Traceback (most recent call last)" in outcome.on.stderr
    assert outcome.steps == outcome.on.stdout.count("step")


def test_program_killed_by_a_signal_has_its_status(tmp_path: Path) -> None:
    outcome = both_forked(tmp_path, "import os, small_training; small_training.train(); os.kill(os.getpid(), 11)")
    assert outcome.on.status == outcome.off.status == -signal.SIGSEGV


# With trackers, captures and all samplers on. Prints the kinds of listening sockets of the process and its children.
LISTENS = """
import os, psutil, torch
import torch.distributed as dist
from torch import nn
if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = nn.Linear(4, 1)
if "RANK" in os.environ:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
def listening():
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        for connection in process.net_connections("all"):
            is_bound = connection.type.name == "SOCK_DGRAM" and connection.laddr
            if connection.status == psutil.CONN_LISTEN or is_bound:
                yield f"{connection.family.name} {connection.type.name}"
print("listens", sorted(listening()), flush=True)
if "RANK" in os.environ:
    dist.barrier()
    import time; time.sleep(0.2)  # gloo can lock up where its group goes right after a collective
    dist.destroy_process_group()
"""


def outputs(cwd: Path, ranks: int, is_on: bool) -> list[str]:
    words = [str(write_script(cwd, LISTENS))]
    everything = {"SINKS": "jsonl,csv", "CAPTURE": "steps=20-22", "STREAM": "stderr", "MONITOR_S": "0.1"}
    variables = {f"RECTIFIED_FLOW_PROFILE_{name}": value for name, value in everything.items()} if is_on else {}
    if ranks > 1:
        processes = start_ranks(cwd, words, ranks, environment(None, **variables), is_on)
    else:
        processes = [start_in_fork(cwd, words, environment(None, **variables), is_on)]
    ended = [finish(process, cwd) for process in processes]
    assert [each.status for each in ended] == [0] * ranks, ended
    return [each.stdout for each in ended]


@pytest.mark.parametrize("ranks", [1, 2])
def test_profiler_listens_on_no_socket(tmp_path: Path, ranks: int) -> None:
    off, on = (outputs(tmp_path, ranks, is_on) for is_on in (False, True))
    assert all(stdout.startswith("listens [") for stdout in off)
    assert on == off
    if ranks == 1:
        assert off == ["listens []\n"]
    assert reported_steps(tmp_path) == 40
