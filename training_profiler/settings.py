"""Every setting, its variable, its default, and what it may be; the one reader of the environment."""

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from training_profiler.errors import SettingsError
from training_profiler.switch import PREFIX, ROOT, SWITCH
from training_profiler.torch_capture.plan import CapturePlan, read_plan

FORMATS: Final = ("table", "lines")
MOST_SAMPLE_HZ: Final = 1000  # a look takes 0.1 ms
MOST_NAMES: Final = 4000  # each name costs 15 kB of histogram, in four sums
STREAMS: Final = ("stdout", "stderr")
TIMINGS: Final = ("auto", "host", "events", "sync")
SINKS: Final = ("wandb", "tensorboard", "jsonl", "prometheus", "mlflow", "csv")
YES: Final = ("1", "true", "yes", "on")
NO: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher such as torchrun told this process; None is unknown."""

    world_size: int | None = None
    local_rank: int | None = None
    node: int | None = None
    attempt: int = 0
    """How often the launcher had started the training anew before."""
    run_id: str | None = None
    """What all processes of the training have in common, in all attempts; None where it would not tell two apart."""
    has_agent_store: bool = False
    """Whether the store of the processes is kept by the launcher, and not by rank 0."""
    job: str | None = None
    """SLURM's job and the step of it."""
    is_torchrun: bool = False
    """Whether it is torchrun that told: a world size from elsewhere may be left over in a shell."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session works with."""

    log_every: int = 50
    """Steps between periodic reports."""
    format: str = "table"
    """Layout of the reports: table, or lines to grep."""
    dir: str = "runs"
    """Folder in which each run makes a folder of its own."""
    stream: str = "stdout"
    """Where reports are printed: stdout or stderr."""
    warmup: int | None = None
    """First steps left out of averages; None tells them apart by their length, in step averages alone."""
    flush_s: float = 10.0
    """Longest time between two writes to the journal, in s."""
    max_names: int = 500
    """Section names that get a row of their own; the rest share one."""
    sample_hz: int = 50
    """How often a second the line sampler looks at the training thread; 0 for never."""
    timing: str = "auto"
    """What sections are timed by on an accelerator: auto, host, events or sync."""
    monitor_s: float = 1.0
    """Time between two looks at the machine, in s; 0 for none."""
    flops: bool = True
    """Whether the FLOPs of the model are counted, once, in an early step."""
    sinks: tuple[str, ...] = ()
    """Trackers that get the metrics."""
    log_scalars_every_n_steps: int | None = None
    """Steps between two rows of a loader's metrics; None for every step, as far as trackers can follow."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Thresholds of rules that differ from the default, by the rule's code."""
    checklist: bool = False
    """Whether the final summary ends with the quick checklist."""
    rank_wait_s: float = 2.0
    """Longest time that a rank waits for others at its end, in s; 0 for none."""
    capture: CapturePlan = field(default_factory=CapturePlan)
    """When deep capture records, and the limits of its windows."""
    rank: int = 0
    """This process's number in a distributed training; only rank 0 reports."""
    launch: Launch = field(default_factory=Launch)
    """What else the launcher told."""


def _count(given: object, least: int, what: str, example: object, most: int | None = None) -> int:
    try:
        number = int(str(given).strip()) if not isinstance(given, bool) else None
    except ValueError:
        number = None
    if number is None or number < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise SettingsError(f"is not {kind} ({what}); example: {example}")
    if most is not None and number > most:
        raise SettingsError(f"is more than {most} ({what}); example: {example}")
    return number


def _seconds(given: object, what: str, example: object, may_be_zero: bool = False) -> float:
    try:
        seconds = float(str(given)) if not isinstance(given, bool) else -1.0
    except ValueError:
        seconds = -1.0
    if seconds == 0 and may_be_zero:
        return 0.0
    if not 0 < seconds < float("inf"):
        kind = "a number of seconds of at least 0" if may_be_zero else "a positive number of seconds"
        raise SettingsError(f"is not {kind} ({what}); example: {example}")
    return seconds


def _yes_or_no(given: object, what: str) -> bool:
    word = str(given).strip().lower()
    if word not in YES + NO:
        raise SettingsError(f"is neither yes nor no ({what}); example: 1")
    return word in YES


def _every(given: object) -> int | None:
    if str(given).strip().lower() in ("none", "auto"):
        return None
    return _count(given, 1, "steps between two rows of a loader's metrics, or none for every step", 10)


def _sinks(given: object) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    words = [str(name).strip().lower() for name in names if str(name).strip()]
    for word in words:
        if word not in SINKS:
            close = difflib.get_close_matches(word, SINKS, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise SettingsError(f"names {word!r}, which is not one of {', '.join(SINKS)}{meant}; example: jsonl,csv")
    return tuple(dict.fromkeys(words))


def _thresholds(given: object) -> dict[str, float]:
    from training_profiler.diagnosis import THRESHOLDS  # here, for hardly anybody sets any, and imports take time

    return read_thresholds(given, THRESHOLDS, "example: data-loading-bound=0.2,unexplained=0.15")


def read_thresholds(given: object, known: Collection[str], example: str) -> dict[str, float]:
    """Return the threshold of each rule that ``given`` names, a mapping or a text such as ``unexplained=0.15``.

    Raises:
        SettingsError: a rule is none of ``known``, or a threshold is no number of at least 0.
    """
    if isinstance(given, Mapping):
        pairs = [(str(code), value) for code, value in given.items()]
    else:
        parts = [part.partition("=") for part in str(given).split(",") if part.strip()]
        pairs = [(code, value) for code, _, value in parts]
    thresholds = {}
    for code, value in pairs:
        code = code.strip()
        if code not in known:
            close = difflib.get_close_matches(code, known, n=1, cutoff=0.0)
            raise SettingsError(f"names {code!r}, which is no rule; did you mean {close[0]}? {example}")
        try:
            number = float(str(value))
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise SettingsError(f"has {str(value)!r} for {code}, which is no number of at least 0; {example}")
        thresholds[code] = number
    return thresholds


def _word(given: object, words: tuple[str, ...]) -> str:
    word = str(given).strip().lower()
    if word not in words:
        raise SettingsError(f"is not one of {', '.join(words)}; example: {words[0]}")
    return word


def _folder(given: object) -> str:
    try:
        folder = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        folder = None
    if not isinstance(folder, str) or not folder.strip() or "\0" in folder:
        raise SettingsError("is not the path of a folder (where runs are kept); example: runs")
    return folder


def _warmup(given: object) -> int | None:
    if given is None or str(given).strip().lower() == "auto":
        return None
    return _count(given, 0, "first steps left out of averages, or auto", 3)


_CHECKS: Final[Mapping[str, Callable[[object], Any]]] = {
    "log_every": lambda given: _count(given, 1, "steps between reports", 50),
    "format": lambda given: _word(given, FORMATS),
    "dir": _folder,
    "stream": lambda given: _word(given, STREAMS),
    "warmup": _warmup,
    "flush_s": lambda given: _seconds(given, "between writes to the journal", 10),
    "max_names": lambda given: _count(given, 1, "section names with a row of their own", 500, most=MOST_NAMES),
    "sample_hz": lambda given: _count(given, 0, "samples of the line that runs, a second", 50, most=MOST_SAMPLE_HZ),
    "timing": lambda given: _word(given, TIMINGS),
    "monitor_s": lambda given: _seconds(given, "between looks at the machine, 0 for none", 1, may_be_zero=True),
    "flops": lambda given: _yes_or_no(given, "whether the FLOPs of the model are counted"),
    "sinks": _sinks,
    "log_scalars_every_n_steps": _every,
    "thresholds": _thresholds,
    "checklist": lambda given: _yes_or_no(given, "whether the final summary ends with the checklist"),
    "rank_wait_s": lambda given: _seconds(given, "that a rank waits for others at its end", 2, may_be_zero=True),
    "capture": read_plan,
}


def read_settings(arguments: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings: an argument wins over its variable, a variable over the default.

    Raises:
        SettingsError: a value cannot be used, or an argument has no such name.
    """
    arguments = {name: value for name, value in (arguments or {}).items() if value is not None}
    values: dict[str, Any] = {"rank": _number(environ, "RANK") or 0, "launch": _launch(environ)}
    for name in arguments:
        if name not in _CHECKS:
            raise SettingsError(f"start_training_profiling({name}=...) is no setting{_nearest(name, list(_CHECKS))}")
    for name, check in _CHECKS.items():
        variable = PREFIX + name.upper()
        if name in arguments:
            values[name] = _checked(f"start_training_profiling({name}={arguments[name]!r})", check, arguments[name])
        elif environ.get(variable, "").strip():
            values[name] = _checked(f"{variable}={environ[variable]!r}", check, environ[variable])
    return Settings(**values)


def _checked(what: str, check: Callable[[object], Any], given: object) -> Any:
    try:
        return check(given)
    except SettingsError as error:
        raise SettingsError(f"{what} {error}") from None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None


def _launch(environ: Mapping[str, str]) -> Launch:
    run_id = environ.get("TORCHELASTIC_RUN_ID")
    job, job_step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    return Launch(
        world_size=_number(environ, "WORLD_SIZE"),
        local_rank=_number(environ, "LOCAL_RANK"),
        node=_number(environ, "GROUP_RANK"),
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
        run_id=None if run_id in (None, "", "none") else run_id,  # torchrun's own without --rdzv-id is "none"
        has_agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
        job=f"{job}.{job_step}" if job and job_step else None,
        is_torchrun=run_id is not None,
    )


def variables() -> list[str]:
    """Return the names of all variables the profiler reads."""
    return [SWITCH, *(PREFIX + field.name.upper() for field in fields(Settings) if field.name in _CHECKS)]


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return one sentence for each variable with our prefix that no setting reads."""
    known = variables()
    return [
        f"{name} is no setting of the profiler and has no effect{_nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith(SWITCH) and name not in known and name != ROOT
    ]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; did you mean {close[0]}?" if close else ""


def launch_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return what all processes of this launch have in common; None where the bootstrap is not at work."""
    return environ.get(ROOT, "").partition(":")[2] or None


def is_dumb_terminal(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal shows plain characters only (TERM=dumb)."""
    return environ.get("TERM") == "dumb"
