"""What the profiler finds on a machine: versions, settings, trackers, patches, its own cost, where it can write."""

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from training_profiler.base.backends import BACKENDS
from training_profiler.base.errors import SettingsError
from training_profiler.base.switch import START_UP_FILE, SWITCH, environment, start_up_file
from training_profiler.base.trackers import TRACKERS, Tracker
from training_profiler.base.units import NS_PER_US
from training_profiler.bootstrap.training_profiler_hook import HOOK
from training_profiler.recording.recorder import Recorder
from training_profiler.runtime.health import measure_section_cost_ns
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.runtime.parts import new_recorder
from training_profiler.settings.settings import Settings, given_variables, read_settings, unknown_variables
from training_profiler.storage.run_folder import masked

PACKAGES: Final = ("torch", "numpy", "msgspec", "psutil", "tabulate")
FRAMEWORKS: Final = (
    "lightning",
    "pytorch-lightning",
    "transformers",
    "accelerate",
    "pytorch-ignite",
    "keras",
    "skorch",
)
LONGEST_START_S: Final = 30.0  # of a Python
ADVICE: Final = (
    "put training-profiler run in front of your command, or install into an environment of your own (python -m venv); "
    "Python reads no start-up files in folders of pip install --target and of PYTHONPATH"
)
ROUNDS: Final = 7  # blocks with patches, each followed by one without
STEPS: Final = 60  # a block
WARM_UP: Final = 100  # steps: the first ones are observed more closely, and the interpreter adapts to patched calls


class CheckupPart(NamedTuple):
    """A part of the checkup."""

    title: str
    rows: tuple[tuple[str, str], ...]
    problems: tuple[str, ...] = ()


def check_up() -> Iterator[CheckupPart]:
    """Yield the parts of the checkup. It imports torch, and takes some seconds."""
    yield _versions()
    yield _activation()
    settings, section = _settings()
    yield section
    yield _trackers(settings)
    found = {name: version for name in FRAMEWORKS if (version := _version(name)) is not None}
    yield CheckupPart("Frameworks", tuple(found.items()) or (("none", f"of {', '.join(FRAMEWORKS)}"),))
    torch = _torch()
    if torch is None:
        yield CheckupPart("Instrumentation", (), ("torch cannot be imported: nothing can be profiled",))
    else:
        yield _instrumentation(torch, settings)
    yield _folder(settings)


def _versions() -> CheckupPart:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        python += ", free-threaded"
    rows = [
        ("training_profiler", _version("training_profiler") or "not installed"),
        ("Python", f"{python}, {sys.executable}"),
        ("system", platform.platform()),
        *((name, _version(name) or "not installed") for name in PACKAGES),
    ]
    return CheckupPart("Versions", (*rows, ("accelerators", _accelerators())))


def _activation() -> CheckupPart:
    """Return whether the variable alone profiles the programs of this Python, as a child of it shows."""
    file = start_up_file()
    text = f"import sys; sys.exit(not hasattr(sys, {HOOK!r}))"
    environ = {name: value for name, value in environment(is_on=True).items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", text]
    try:
        is_active = not subprocess.run(words, env=environ, capture_output=True, timeout=LONGEST_START_S).returncode
    except (OSError, subprocess.TimeoutExpired):
        is_active = False
    return CheckupPart(
        "Switch",
        (
            ("start-up file", file or f"none in a folder that this Python reads at its start ({START_UP_FILE})"),
            (f"{SWITCH}=1", "profiles each training of this Python" if is_active else f"does nothing alone: {ADVICE}"),
        ),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> Any:
    try:
        return import_module("torch")
    except Exception:  # a broken installation raises anything
        return None


def _accelerators() -> str:
    torch, kinds = _torch(), []
    for backend in BACKENDS:
        with suppress(Exception):  # there is no such module, or a driver does not fit
            kinds += [backend.kind] * bool(getattr(torch, backend.kind).is_available())
    return ", ".join(kinds) or "none"


def _settings() -> tuple[Settings, CheckupPart]:
    """Return the settings, defaults if they cannot be read, and their part of the checkup."""
    shown = (masked([f"{name}={value}"])[0].partition("=") for name, value in given_variables().items())
    rows = tuple((name, f"{value} (from the environment)") for name, _, value in shown)
    problems = unknown_variables()
    try:
        settings = read_settings()
    except SettingsError as error:
        problems.insert(0, str(error))
        settings = Settings()
    return settings, CheckupPart(
        "Settings", rows or (("all settings", "defaults: no variable of the profiler is set"),), tuple(problems)
    )


def _trackers(settings: Settings) -> CheckupPart:
    rows = tuple((name, _tracker(tracker)) for name, tracker in TRACKERS.items())
    missing = [name for name in settings.sinks if not _is_installed(TRACKERS[name])]
    return CheckupPart("Trackers", rows, tuple(f"{name} is one of the sinks, and is not installed" for name in missing))


def _tracker(tracker: Tracker) -> str:
    if tracker.needs is None:
        return "ready: needs no package"
    if not _is_installed(tracker):
        return f"not installed: pip install 'training-profiler[{tracker.extra}]'"
    return f"ready: {tracker.package} {_version(tracker.package or '') or ''}".rstrip()


def _is_installed(tracker: Tracker) -> bool:
    try:
        return tracker.needs is None or find_spec(tracker.needs) is not None
    except (ImportError, ValueError):
        return False


def _instrumentation(torch: Any, settings: Settings) -> CheckupPart:
    recorder = new_recorder(settings)
    # The least of several: other programs make some of them longer.
    section_us = min(measure_section_cost_ns(recorder.implementation) for _ in range(ROUNDS)) / NS_PER_US
    instrumentation = Instrumentation(recorder, lambda: lambda at_ns: None)
    try:
        added_us, step_us = _measure_step(torch, instrumentation, recorder)
    finally:
        instrumentation.uninstall()
    missing = tuple(f"not instrumented: {name} ({reason})" for name, reason in instrumentation.missing.items())
    return CheckupPart(
        "Instrumentation",
        (
            ("patches", "all that this torch has a place for" if not missing else f"all but {len(missing)}"),
            ("recorder", recorder.implementation.describe()),
            ("cost of a section", f"{section_us:.2f} us"),
            ("cost of a step", f"{added_us:.0f} us of CPU, on a step of {step_us:.0f} us of the smallest model"),
        ),
        missing,
    )


def _measure_step(torch: Any, instrumentation: Instrumentation, recorder: Recorder) -> tuple[float, float]:
    """Return the CPU time that the patches add to a step, and that of the step without, in us."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = _smallest_step(torch)
        _block_us(step, WARM_UP)
        added, plain = [], []
        for _ in range(ROUNDS):
            instrumentation.install(torch)
            _block_us(step, WARM_UP)
            patched = _block_us(step, STEPS)
            instrumentation.uninstall()
            recorder.discard()
            _block_us(step, WARM_UP)
            plain.append(_block_us(step, STEPS))
            added.append(patched - plain[-1])
    finally:
        torch.set_num_threads(threads)
    return max(0.0, median(added)), median(plain)


def _smallest_step(torch: Any) -> Callable[[], None]:
    state = torch.random.get_rng_state()
    model = torch.nn.Linear(8, 8)
    torch.random.set_rng_state(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = torch.ones(4, 8)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def _block_us(step: Callable[[], None], steps: int) -> float:
    begin_ns = time.thread_time_ns()
    for _ in range(steps):
        step()
    return (time.thread_time_ns() - begin_ns) / steps / NS_PER_US


def _folder(settings: Settings) -> CheckupPart:
    folder = Path(settings.dir).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    problem = None if nearest.is_dir() else "it is not a folder"
    try:
        if problem is None:
            tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        problem = error.strerror or str(error)
    text = str(folder) if nearest == folder else f"{folder}, which is made in {nearest}"
    rows = (("runs are written to", text), ("writing", "works" if problem is None else "fails"))
    return CheckupPart(
        "Run folder", rows, () if problem is None else (f"{nearest}: {problem}; choose another with dir",)
    )
