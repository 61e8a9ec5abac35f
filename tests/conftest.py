"""For every test: profiling is off before it, and nothing is left behind after it."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.recording import FakeClock
from training_profiler.recording.recorder import Recorder
from training_profiler.safety import files as own_folder

TESTS = Path(__file__).parent
PREFIX = "RECTIFIED_FLOW_PROFILE"
# These libraries keep one thread for the life of the process.
LASTING_THREADS = ("tqdm.", "torch.")
MOST_WORKERS = 8
# Their tests run real trainings, in which what else the machine does shows. Each has two more chances; -rR names it.
WITH_TRAININGS = ("chaos", "examples", "integrations", "system", "trials")

# Before torch is imported: the tests share the cores already, a process a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in [name for name in os.environ if name.startswith(PREFIX)]:
    del os.environ[_name]

# A shell starts background jobs such as `make test &` with Ctrl-C ignored, and children of tests inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("unit", deadline=None, max_examples=100, derandomize=True, database=None)
settings.register_profile("search", deadline=None, max_examples=600, database=None)
settings.load_profile("unit")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for ``-n auto``: three for two cores that this process may use, at most 8.

    Many tests wait for processes, signals and times a third of the time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + cores // 2, MOST_WORKERS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give trainings two more chances, and keep tests that share a fixture of their module in one worker."""
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in WITH_TRAININGS:
            item.add_marker(pytest.mark.flaky(reruns=2))
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - private, and the only way to the scope
        shared = [name for name, definitions in fixtures.items() if definitions and definitions[-1].scope == "module"]
        if shared:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            variants = [str(params[name]) for name in shared if name in params]
            item.add_marker(pytest.mark.xdist_group("-".join([str(item.path), *variants])))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected, and never look through what is there then: it takes half the time.

    All modules and tests stay to the end; full collections during tests go through their own objects alone.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """Remove what importing ``training_profiler.api`` installs: tests begin as a program without it."""
    sys.excepthook = sys.__excepthook__


@pytest.fixture(autouse=True)
def patient_with_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions in this process wait for a disk that stalls: other work on the machine writes, too."""
    monkeypatch.setattr("training_profiler.runtime.outputs.DISK_S", 30.0)
    monkeypatch.setattr("training_profiler.base.peaks.HOME_S", 30.0)


@pytest.fixture(autouse=True)
def open_folders_are_let_go() -> Iterator[None]:
    """Close run folders of tests that end no session."""
    yield
    for folder in list(own_folder._open):
        own_folder.let_go(folder)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def recorder(clock: FakeClock) -> Recorder:
    return Recorder(clock=clock)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, a SIGTERM handler, a running session or one of our variables."""
    threads = set(threading.enumerate())
    handler, hook = signal.getsignal(signal.SIGTERM), sys.excepthook
    yield
    left = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads and _is_ours(thread)]
    if signal.getsignal(signal.SIGTERM) != handler:
        left.append(f"SIGTERM handler {signal.getsignal(signal.SIGTERM)!r}")
        signal.signal(signal.SIGTERM, handler)
    if sys.excepthook is not hook:
        left.append(f"excepthook {sys.excepthook!r}")
        sys.excepthook = hook
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        left.append(f"variable {name}")
        del os.environ[name]
    left += _running_session()
    _forget_compiled()
    if left:
        pytest.fail("left behind: " + ", ".join(left))


def _forget_compiled() -> None:
    """Drop what a test compiled, for FLOPs are not counted in a process that has compiled anything."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None and frames.cached_backends:
        sys.modules["torch"]._dynamo.reset()


def _is_ours(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return not any(module.startswith(LASTING_THREADS) for module in modules)


def _running_session() -> list[str]:
    live = sys.modules.get("training_profiler.api")
    session = live._process.session if live is not None else None
    if session is None or not session.is_running:
        return []
    session.close()
    return ["running session"]
