"""Signals end a training as they would without the profiler, with the program's own frames and status."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.scripts import SUMMARY, THREE_STEPS, Outcome, environment, finish, run, start, wait_for, write_script

pytestmark = pytest.mark.chaos
FOLLOWED_WITHIN_S = 60  # the calls in C take ten minutes; on an idle machine it is below one second

# Calls in C that release the GIL, as those of torch do.
LONG_CALLS = {
    "sleep": "import ctypes\ncall = lambda: ctypes.CDLL(None).sleep(600)",
    "matmul": "import torch\na = torch.ones(30000, 4000)\ncall = lambda: [torch.mm(a, a.T) for _ in range(1)] * 2",
}
STEPS = THREE_STEPS + "print('ready', flush=True)\n"
# A training whose forward pass consists of Python, so that most signals arrive there.
TRAINING = """
import torch
import tests.chaos.programs.without_dynamo
from torch.utils.data import DataLoader, TensorDataset

class Deep(torch.nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Deep(depth - 1) if depth else torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)

model = torch.nn.Sequential(Deep(5), Deep(5))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=4)

def train():
    while True:
        for (batch,) in loader:
            optimizer.zero_grad()
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            if not seen:
                seen.append(True)
                print("ready", flush=True)

seen = []
train()
"""
SECTIONS = """
from training_profiler import *
start_training_profiling(log_every=1000)
print("ready", flush=True)
while True:
    with profile_section("forward_pass"):
        with profile_section("attention"): pass
    profile_step()
"""


def start_under_run(cwd: Path, script: str) -> "subprocess.Popen[str]":
    """Start ``script`` under ``training-profiler run``."""
    return subprocess.Popen(
        [sys.executable, "-m", "training_profiler", "run", str(write_script(cwd, script))],
        cwd=cwd,
        env=environment(None),
        text=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def send(process: "subprocess.Popen[str]", cwd: Path, signum: int, after_s: float) -> tuple[Outcome, float]:
    """Send a signal to a script that has printed ``ready``; return its outcome and how long it took to end."""
    read = wait_for(process, "ready")
    time.sleep(after_s)  # so that it has arrived at the call; if not, the test is easier to pass
    begin_s = time.monotonic()
    process.send_signal(signum)
    outcome = finish(process, cwd, read)
    return outcome, time.monotonic() - begin_s


@pytest.mark.parametrize("call", LONG_CALLS)
def test_sigterm_is_followed_during_a_long_call_in_c(tmp_path: Path, call: str) -> None:
    process = start(tmp_path, LONG_CALLS[call] + STEPS + "call()\n", variables={"OMP_NUM_THREADS": "1"})
    outcome, took_s = send(process, tmp_path, signal.SIGTERM, 0.5)
    assert (outcome.status, outcome.stderr) == (-signal.SIGTERM, "")
    assert took_s < FOLLOWED_WITHIN_S
    assert SUMMARY.findall(outcome.stdout) == ["3"]
    assert outcome.report["ended_by"] == "SIGTERM"


# A program that blocks SIGTERM on its only thread gets it when it unblocks it; threads of torch take it at once.
SOME_THREADS = {"OMP_NUM_THREADS": "2"}  # of numpy and of torch
BLOCK = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
TORCH = "import torch\ntorch.mm(torch.ones(500, 500), torch.ones(500, 500))\n"
BLOCKED = {
    "without torch": THREE_STEPS + BLOCK,
    "blocked before torch": BLOCK + TORCH + THREE_STEPS,
    "blocked after torch": TORCH + THREE_STEPS + BLOCK,
    "torch after the profiler": THREE_STEPS + TORCH + BLOCK,
}
UNBLOCK = """
import time
print('ready', flush=True)
for _ in range(40): time.sleep(0.05)
print('still there', flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
print('never', flush=True)
"""


@pytest.mark.parametrize("program", BLOCKED)
def test_blocked_sigterm_arrives_when_it_would_without_us(tmp_path: Path, program: str) -> None:
    outcomes = []
    for profile in (None, "1"):
        cwd = tmp_path / str(profile)
        cwd.mkdir()
        process = start(cwd, BLOCKED[program] + UNBLOCK, profile, variables=SOME_THREADS)
        outcome, _ = send(process, cwd, signal.SIGTERM, 0.1)
        outcomes.append((outcome.status, outcome.stderr, "still there" in outcome.stdout, "never" in outcome.stdout))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][:2] == (-signal.SIGTERM, "")
    assert outcomes[0][2] or program in ("blocked after torch", "torch after the profiler")


WAITS_FOR_IT = """
print('ready', flush=True)
print('got', signal.sigwait({signal.SIGTERM, signal.SIGUSR1}).name, flush=True)
"""


def test_sigwait_gets_sigterm_in_a_program_without_torch(tmp_path: Path) -> None:
    process = start(tmp_path, THREE_STEPS + BLOCK + WAITS_FOR_IT, variables=SOME_THREADS)
    outcome, _ = send(process, tmp_path, signal.SIGTERM, 0.5)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "got SIGTERM\n" in outcome.stdout


def test_sigterm_ends_a_run_whose_summary_hangs(tmp_path: Path) -> None:
    hang = """
import training_profiler.runtime.pipeline as pipeline, threading
pipeline.Pipeline.close = lambda *_: threading.Event().wait()
"""
    process = start(tmp_path, STEPS + hang + "import time\nwhile True: time.sleep(1)\n")
    outcome, _ = send(process, tmp_path, signal.SIGTERM, 0)
    assert (outcome.status, outcome.stderr) == (-signal.SIGTERM, "")


def test_sigterm_to_a_child_does_not_end_its_parent(tmp_path: Path) -> None:
    script = (
        STEPS
        + """
import ctypes, os, signal, time
children = []
for _ in range(20):
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True: time.sleep(1)
    children.append(child)
    if len(children) > 10: os.kill(child, signal.SIGTERM)  # often before the child's hooks have run
for child in children[:10]: os.kill(child, signal.SIGTERM)
ctypes.CDLL(None).sleep(2)
print([os.waitpid(child, 0)[1] for child in children] == [15] * 20)
"""
    )
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "True\n" in outcome.stdout


def test_sigterm_waits_for_the_hooks_of_a_forked_child(tmp_path: Path) -> None:
    """A child that has SIGTERM before them would go on: Python clears what its handlers have not seen by then."""
    script = """
import os, signal
is_blocked = lambda: signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
os.register_at_fork(after_in_child=lambda: os.write(1, f'in the hooks: {is_blocked()}\\n'.encode()))
"""
    forks = """
def fork():
    child = os.fork()
    if not child:
        os.write(1, f'afterwards: {is_blocked()}\\n'.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.write(1, f'parent: {is_blocked()}\\n'.encode())
fork()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
fork()
"""
    outcome = run(tmp_path, script + STEPS + forks)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert [line for line in outcome.stdout.splitlines() if line.endswith((": True", ": False"))] == [
        *("in the hooks: True", "afterwards: False", "parent: False"),
        *("in the hooks: True", "afterwards: True", "parent: True"),
    ]


def test_handler_of_a_library_in_c_stays(tmp_path: Path) -> None:
    script = "import faulthandler, signal\nfaulthandler.register(signal.SIGTERM)\n" + STEPS + "signal.pause()\n"
    process = start(tmp_path, script)
    read = wait_for(process, "ready")
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    dumped = process.stderr.readline()
    process.kill()
    finish(process, tmp_path, read)
    assert "most recent call first" in dumped


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, int]:
    """The status of both trainings after Ctrl-C without the profiler. At its exit torch may evaluate text, and then
    Python forgets that the program was interrupted."""
    return {
        is_under_run: send(start(cwd, script, None), cwd, signal.SIGINT, 0)[0].status
        for is_under_run, script in ((False, SECTIONS), (True, TRAINING))
        for cwd in [tmp_path_factory.mktemp("alone")]
    }


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])  # SIGINT: below
@pytest.mark.parametrize("is_under_run", [False, True])
def test_status_after_a_signal_is_that_without_the_profiler(
    tmp_path: Path, signum: signal.Signals, is_under_run: bool
) -> None:
    process = start_under_run(tmp_path, TRAINING) if is_under_run else start(tmp_path, SECTIONS)
    outcome, _ = send(process, tmp_path, signum, 0.1)
    assert (outcome.status, outcome.stderr) == (-signum, "")


@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("is_under_run", [False, True])
def test_traceback_of_ctrl_c_shows_the_program_alone(
    tmp_path: Path, interrupted: dict[bool, int], attempt: int, is_under_run: bool
) -> None:
    process = start_under_run(tmp_path, TRAINING) if is_under_run else start(tmp_path, SECTIONS)
    outcome, _ = send(process, tmp_path, signal.SIGINT, random.Random(attempt).random() / 2)
    assert outcome.status == interrupted[is_under_run]
    assert outcome.stderr.startswith("Traceback (most recent call last):\n")
    assert outcome.stderr.endswith("KeyboardInterrupt\n")
    assert outcome.stderr.count("Traceback") == 1
    assert "training_profiler" not in outcome.stderr.replace(str(tmp_path), "")
    for ours in ("call_as_torch", "outermost", "hide_our_frames", "frozen importlib"):
        assert ours not in outcome.stderr


def test_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    waits = """
import training_profiler.runtime.pipeline as pipeline, threading
def wait(*_):
    print("waits", flush=True)
    threading.Event().wait()
pipeline.Pipeline.close = wait
import time
print("ready", flush=True)
while True: time.sleep(0.01)
"""
    process = start(tmp_path, THREE_STEPS + waits)
    read = wait_for(process, "ready")
    process.send_signal(signal.SIGINT)
    read += wait_for(process, "waits")
    process.send_signal(signal.SIGINT)
    outcome = finish(process, tmp_path, read)
    assert outcome.status == -signal.SIGINT
    assert outcome.stderr.count("Traceback") == 1
    assert "training_profiler" not in outcome.stderr.replace(str(tmp_path), "")
    assert "Exception ignored" not in outcome.stderr


# What the program itself sees of an exception that passed through the profiler.
OWN_TRACEBACKS = """
import logging, sys, threading, traceback
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Broken(nn.Module):
    def forward(self, x): raise KeyError("forward")

class Bad(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        if index: raise OSError("disk")
        return torch.ones(2)

class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 2
    @staticmethod
    def backward(context, gradient): raise OSError("gradient")

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
broken = nn.Sequential(nn.Sequential(Broken()))

def fail_in_hook():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: 1 / 0)
    (x * 2).sum().backward()

def closure(): raise ArithmeticError("closure")

WAYS = {
    "forward": lambda: broken(torch.ones(2)),
    "fetch": lambda: list(DataLoader(Bad())),
    "backward": lambda: BadGradient.apply(model(torch.ones(2))).sum().backward(),
    "hook": fail_in_hook,
    "closure": lambda: optimizer.step(closure),
    "save": lambda: torch.save([1], "no/such/folder.pt"),
    "transfer": lambda: torch.ones(1).to("no such device"),
    "clip": lambda: nn.utils.clip_grad_norm_(7, 1.0),
}
for _ in range(3):
    for batch in DataLoader([torch.ones(2)] * 2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
for name, fail in WAYS.items():
    try:
        fail()
    except Exception:
        print(name, traceback.format_exc())
        logging.exception("logged")
    thread = threading.Thread(target=fail, name=name)
    thread.start()
    thread.join()
broken(torch.ones(2))
"""


def test_program_sees_no_frames_of_ours_in_its_own_tracebacks(tmp_path: Path) -> None:
    alone = run(tmp_path, OWN_TRACEBACKS, profile=None)
    profiled = finish(start_under_run(tmp_path, OWN_TRACEBACKS), tmp_path)
    assert alone.status == profiled.status == 1
    assert without_wrapper(profiled.stderr) == without_wrapper(alone.stderr)
    tracebacks = without_wrapper(alone.stdout)
    assert without_wrapper(profiled.printed)[: len(tracebacks)] == tracebacks


def without_wrapper(tracebacks: str) -> str:
    """Leave out a function of torch that only chooses between two others, and whose place the patch takes."""
    return re.sub(r"  File .* in _wrapped_call_impl\n    .*\n( +\^+\n)?", "", tracebacks)


def test_decorated_functions_and_loaders_leave_no_frames(tmp_path: Path) -> None:
    script = """
        import asyncio, traceback
        from training_profiler import *
        def fail(*_): raise KeyError("mine")
        @profile_section("function")
        def function(): fail()
        @profile_section("generator")
        def generator():
            yield 1
            fail()
        @profile_section("coroutine")
        async def coroutine(): fail()
        @profile_section("asynchronous generator")
        async def asynchronous():
            yield 1
            fail()
        async def consume():
            async for _ in asynchronous(): pass
        def batches():
            yield 1
            fail()
        class Loader:
            def __iter__(self): fail()
            def __len__(self): fail()
        for way in (
            function, lambda: list(generator()), lambda: asyncio.run(coroutine()), lambda: asyncio.run(consume()),
            lambda: list(profile_dataloader(batches())), lambda: list(profile_dataloader(Loader())),
            lambda: len(profile_dataloader(Loader())), lambda: profile_dataloader(Loader()).missing,
        ):
            try: way()
            except Exception: print(traceback.format_exc())
        stop_training_profiling()
    """
    alone = run(tmp_path, script, profile=None)
    profiled = run(tmp_path, script, variables={"RECTIFIED_FLOW_PROFILE_STREAM": "stderr"})
    assert profiled.stdout == alone.stdout
    assert alone.stdout.count("Traceback") >= 7


def test_interrupt_by_a_handler_of_the_program_keeps_its_frames(tmp_path: Path) -> None:
    script = """
        import signal, traceback
        from training_profiler import *
        start_training_profiling(log_every=1000)
        def limit(signum, frame): raise TimeoutError
        signal.signal(signal.SIGALRM, limit)
        for attempt in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + attempt * 1e-5)
                while True:
                    with profile_section("a"): pass
            except TimeoutError:
                seen = traceback.format_exc()
                assert seen.count("in limit") == 1, seen
        print("done")
    """
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "done\n" in outcome.stdout


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no forks")
def test_wakeup_descriptor_is_far_from_those_of_the_program(tmp_path: Path) -> None:
    script = (
        STEPS
        + """
import os, signal
os.closerange(3, 256)
files = [open(f"mine{number}", "wb") for number in range(100)]
signal.signal(signal.SIGUSR1, lambda *_: None)
for _ in range(50): signal.raise_signal(signal.SIGUSR1)
for file in files: file.close()
print(sum(os.path.getsize(file.name) for file in files))
os._exit(0)
"""
    )
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout.endswith("\n0\n")
