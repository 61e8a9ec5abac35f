"""Every setting: its variable, default, meaning, parser and example. Only this module reads the environment."""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, NamedTuple

from training_profiler.base.errors import SettingsError
from training_profiler.base.switch import (
    OFF_WORDS,
    ON_WORDS,
    PREFIX,
    ROOT,
    SHORT_PREFIX,
    SWITCH,
    TRIAL_PLAN,
    given_name,
    short_name,
)
from training_profiler.base.trackers import PROMETHEUS, TRACKERS
from training_profiler.base.units import Price, read_seconds
from training_profiler.torch_capture.plan import CapturePlan, read_plan

FORMATS: Final = ("table", "lines")
STREAMS: Final = ("stdout", "stderr")
TIMINGS: Final = ("auto", "host", "events", "sync")
MAX_SAMPLE_HZ: Final = 1000  # a sample takes 0.1 ms
DEFAULT_LOG_EVERY: Final = 50
DEFAULT_MONITOR_S: Final = 1.0
NATIVE: Final = PREFIX + "NATIVE"  # no argument: the recorder is chosen when the profiler is imported
MAX_NAMES: Final = 4000  # each name needs 15 kB of histograms in each of four totals


class SettingDescription(NamedTuple):
    """A row of the table of settings, and how its value is read from an argument or a variable."""

    argument: str
    parse: Callable[[object], Any]  # returns the value; the message of its error continues the given value
    meaning: str
    example: str
    default: str  # as users write it

    @property
    def variable(self) -> str:
        """The environment variable; ``for_`` has the underscore because ``for`` is a word of Python."""
        return PREFIX + self.argument.rstrip("_").upper()

    @property
    def is_yes_or_no(self) -> bool:
        """Whether a flag says it without a value."""
        return self.parse is _yes_or_no


class _InvalidValueError(ValueError):
    """A value cannot be used; the meaning and the example of the setting complete the message."""


def _setting(
    default: Any, meaning: str, parse: Callable[[object], Any], example: object, default_text: str | None = None
) -> Any:
    text = str(default) if default_text is None else default_text
    kind = {"default_factory": default} if callable(default) else {"default": default}
    parse = partial(_or_none, parse, text) if default is None else parse
    return field(**kind, metadata={SettingDescription: (parse, meaning, str(example), text)})


def _count(given: object, least: int = 1, most: int | None = None) -> int:
    try:
        number = int(str(given).strip()) if not isinstance(given, bool) else None
    except ValueError:
        number = None
    if number is None or number < least:
        raise _InvalidValueError("is not a positive integer" if least == 1 else f"is not an integer >= {least}")
    if most is not None and number > most:
        raise _InvalidValueError(f"is more than {most}")
    return number


def _seconds(given: object, may_be_zero: bool = False) -> float:
    try:
        seconds = float(str(given)) if not isinstance(given, bool) else -1.0
    except ValueError:
        seconds = -1.0
    if seconds == 0 and may_be_zero:
        return 0.0
    if not 0 < seconds < float("inf"):
        raise _InvalidValueError(
            "is not a number of seconds >= 0" if may_be_zero else "is not a positive number of seconds"
        )
    return seconds


def _yes_or_no(given: object) -> bool:
    word = str(given).strip().lower()
    if not word or word not in ON_WORDS + OFF_WORDS:
        raise _InvalidValueError("is neither yes nor no")
    return word in ON_WORDS


def _word(given: object, words: tuple[str, ...]) -> str:
    word = str(given).strip().lower()
    if word not in words:
        raise _InvalidValueError(f"is not one of {', '.join(words)}")
    return word


def _or_none(parse: Callable[[object], Any], none_word: str, given: object) -> Any:
    return None if str(given).strip().lower() == none_word else parse(given)


def _folder(given: object) -> str:
    try:
        folder = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        folder = None
    if not isinstance(folder, str) or not folder.strip() or "\0" in folder:
        raise _InvalidValueError("is not the path of a folder")
    return folder


def _price(given: object) -> Price:
    if isinstance(given, Price):
        return given
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(?:\s+([^\W\d_]{1,10}|[$€£¥₹]))?", str(given).strip())
    if match is None or isinstance(given, bool) or not float(match[1]):
        raise _InvalidValueError("is not a positive price with a currency")
    return Price(float(match[1]), match[2] or "")


def _name(given: object) -> str:
    name = str(given).strip()
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise _InvalidValueError("is not up to 100 letters, digits and _ . -")
    if re.fullmatch(r"\d+|rank\d+(-\d+)?", name):
        raise _InvalidValueError("is a number, or the name of a rank's folder")
    return name


class RunLimit(NamedTuple):
    """After which time since the start of the run, or after how many steps, the training is ended."""

    text: str
    seconds: float | None
    steps: int | None


def _limit(given: object) -> RunLimit:
    text = str(given).strip().lower()
    steps = re.fullmatch(r"(\d{1,15}) *steps?", text)
    limit = RunLimit(text, read_seconds(text), int(steps[1]) if steps else None)
    if not limit.seconds and not limit.steps:
        raise _InvalidValueError("is neither a time nor a number of steps")
    return limit


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def _address(given: object) -> Address:
    host, colon, port = str(given).strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not port.isdecimal() or not 0 < int(port) < 65536 or not host or host.isspace():
        raise _InvalidValueError("is not a port, or an address and a port")
    return Address(host, int(port))


def _sinks(given: object) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    words = [str(name).strip().lower() for name in names if str(name).strip()]
    for word in words:
        if word not in TRACKERS:
            hint = _nearest(word, TRACKERS, cutoff=0.6)
            raise _InvalidValueError(f"names {word!r}, which is not one of {', '.join(TRACKERS)}{hint}")
    return tuple(dict.fromkeys(words))


def _thresholds(given: object) -> dict[str, float]:
    # Here, because few runs override a threshold, and importing the rules takes time.
    from training_profiler.diagnosis.registry import RULES, read_thresholds

    return read_thresholds(given, RULES.thresholds(), f"example: {_THRESHOLDS_EXAMPLE}")


_THRESHOLDS_EXAMPLE: Final = "data-loading-bound=0.2,unexplained=0.15"


@dataclass(frozen=True, slots=True)
class Launch:
    """The variables that a launcher such as torchrun sets; None is unknown."""

    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None  # processes of the training on this machine
    node: int | None = None
    attempt: int = 0  # how often the launcher had restarted the training
    run_id: str | None = None
    """An id shared by all processes and attempts of the training; None if other trainings could have the same."""
    has_agent_store: bool = False  # whether the launcher, not rank 0, hosts the store of the process group
    job: str | None = None  # SLURM's job and job step, such as ``12.0``
    cuda_connections: int | None = None
    """``CUDA_DEVICE_MAX_CONNECTIONS``: queues of work to a CUDA device; 1 with Megatron."""
    openmp_sleeps: bool = False
    """Whether OpenMP's threads sleep while they wait, at once, as by ``OMP_WAIT_POLICY=passive``."""
    is_torchrun: bool = False
    """Whether torchrun set these variables. Otherwise a world size may be left over in a shell."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session. ``describe`` returns the meaning of each."""

    log_every: int = _setting(
        DEFAULT_LOG_EVERY, "steps between periodic reports, 0 for the final summary alone", partial(_count, least=0), 50
    )
    format: str = _setting("table", "layout of the reports", partial(_word, words=FORMATS), "table")
    dir: str = _setting("runs", "folder for run folders", _folder, "runs")
    stream: str = _setting("stdout", "where reports are printed", partial(_word, words=STREAMS), "stdout")
    warmup: int | None = _setting(
        None, "first steps left out of averages, or auto", partial(_count, least=0), 3, default_text="auto"
    )
    flush_s: float = _setting(10.0, "longest time between two writes to the journal, in s", _seconds, 10, "10")
    max_names: int = _setting(500, "section names with a row of their own", partial(_count, most=MAX_NAMES), 500)
    sample_hz: int = _setting(
        50, "samples per second of the running line, 0 for none", partial(_count, least=0, most=MAX_SAMPLE_HZ), 50
    )
    timing: str = _setting("auto", "how sections are timed on an accelerator", partial(_word, words=TIMINGS), "auto")
    monitor_s: float = _setting(
        DEFAULT_MONITOR_S,
        "time between two samples of CPU, memory and GPU, in s, 0 for none",
        partial(_seconds, may_be_zero=True),
        1,
        "1",
    )
    flops: bool = _setting(True, "whether the FLOPs of the model are counted, once", _yes_or_no, 0, "yes")
    sinks: tuple[str, ...] = _setting((), "trackers that receive metrics", _sinks, "jsonl,csv", "none")
    sinks_optional: bool = _setting(
        False, "whether a tracker whose package is missing is left out", _yes_or_no, 1, "no"
    )
    log_scalars_every_n_steps: int | None = _setting(
        None,
        "steps between two rows of a loader's metrics, or none for every step",
        partial(_or_none, _count, "auto"),
        10,
        "none",
    )
    thresholds: Mapping[str, float] = _setting(
        dict, "thresholds of rules that differ from the default", _thresholds, _THRESHOLDS_EXAMPLE, "none"
    )
    checklist: bool = _setting(False, "whether the final summary ends with the quick checklist", _yes_or_no, 1, "no")
    html: bool = _setting(False, "whether the run folder gets its page at the end", _yes_or_no, 1, "no")
    history: bool = _setting(True, "whether a run that ends is compared with earlier ones", _yes_or_no, 0, "yes")
    rank_wait_s: float = _setting(
        2.0,
        "longest time rank 0 waits for other ranks at its end, in s, 0 for none",
        partial(_seconds, may_be_zero=True),
        2,
        "2",
    )
    capture: CapturePlan = _setting(  # noqa: RUF009 - a field
        CapturePlan, "when deep capture records, and its limits", read_plan, "steps=100-103", "on request"
    )
    prometheus_port: Address | None = _setting(  # noqa: RUF009 - a field
        None,
        "port on this machine at which Prometheus finds the metrics, or address:port",
        partial(_or_none, _address, ""),
        9400,
        "none",
    )
    name: str | None = _setting(None, "name of the run, at the end of its folder's name", _name, "baseline", "none")
    gpu_hour_price: Price | None = _setting(  # noqa: RUF009 - a field
        None, "price of one GPU for an hour, with its currency, for costs in the report", _price, "2.50 EUR", "none"
    )
    for_: RunLimit | None = _setting(  # noqa: RUF009 - a field
        None, "time since the start, or number of steps, after which the training is ended", _limit, "200steps", "none"
    )
    stop_when_sure: bool = _setting(
        False, "whether the training is ended once its first finding is sure", _yes_or_no, 1, "no"
    )
    is_log_every_given: bool = field(default=False, compare=False)  # whether the user asked for periodic reports
    # The launcher sets these two.
    rank: int = 0
    """This process's rank. Only rank 0 reports."""
    launch: Launch = field(default_factory=Launch)  # the other values of the launcher's variables
    may_be_native: bool = True  # whether the recorder in C is used where it was built

    @property
    def interval_steps(self) -> int:
        """Steps between two rows for trackers, and two periodic reports where there are any."""
        return self.log_every or DEFAULT_LOG_EVERY

    @property
    def asks_for_reports(self) -> bool:
        """Whether the user has said how often to report."""
        return self.is_log_every_given or self.log_every != DEFAULT_LOG_EVERY

    @property
    def asks_for_monitor(self) -> bool:
        """Whether the user has said how often to sample the machine."""
        return self.monitor_s != DEFAULT_MONITOR_S

    @property
    def is_quiet(self) -> bool:
        """Whether only the final summary is printed."""
        return self.log_every == 0


_ROWS: Final = {
    setting.name: SettingDescription(setting.name, *setting.metadata[SettingDescription])
    for setting in fields(Settings)
    if SettingDescription in setting.metadata
}


def describe() -> list[SettingDescription]:
    """Return one row per setting, in the order of the arguments of ``start_training_profiling``."""
    return list(_ROWS.values())


def read_settings(arguments: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings. An argument wins over its variable, and a variable over the default.

    Raises:
        SettingsError: a value cannot be used, two names of a variable differ, or an argument is unknown.
    """
    arguments = {name: value for name, value in (arguments or {}).items() if value is not None}
    values: dict[str, Any] = {"rank": _number(environ, "RANK") or 0, "launch": _launch(environ)}
    native = given_name(NATIVE, environ)
    if native is not None:
        row = SettingDescription(
            "native", _yes_or_no, "whether the recorder in C is used where it was built", "0", "yes"
        )
        values["may_be_native"] = _parsed(f"{native}={environ[native]!r}", row, environ[native])
    for name in arguments:
        if name not in _ROWS:
            raise SettingsError(f"start_training_profiling({name}=...) is not a setting{_nearest(name, _ROWS)}")
    for name, row in _ROWS.items():
        variable = given_name(row.variable, environ)
        if name in arguments:
            source = f"start_training_profiling({name}={arguments[name]!r})"
            values[name] = _parsed(source, row, arguments[name])
        elif variable is not None:
            values[name] = _parsed(f"{variable}={environ[variable]!r}", row, environ[variable])
    if values.get("prometheus_port") is not None:
        values["sinks"] = tuple(dict.fromkeys((*values.get("sinks", ()), PROMETHEUS.name)))
    return Settings(is_log_every_given="log_every" in values, **values)


def check_setting(name: str, source: str, given: str) -> None:
    """Check a value that was given as ``source``, such as ``--log-every 5s``.

    Raises:
        SettingsError: it cannot be used.
    """
    _parsed(source, _ROWS[name], given)


def _parsed(source: str, row: SettingDescription, given: object) -> Any:
    try:
        return row.parse(given)
    except _InvalidValueError as error:
        raise SettingsError(f"{source} {error} ({row.meaning}); example: {row.example}") from None
    except SettingsError as error:
        raise SettingsError(f"{source} {error}") from None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None


# In the words of libgomp and of Intel's OpenMP.
OPENMP_SLEEPS: Final = (("OMP_WAIT_POLICY", "passive"), ("KMP_BLOCKTIME", "0"), ("GOMP_SPINCOUNT", "0"))


def _launch(environ: Mapping[str, str]) -> Launch:
    run_id = environ.get("TORCHELASTIC_RUN_ID")
    job, job_step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    return Launch(
        world_size=_number(environ, "WORLD_SIZE"),
        local_rank=_number(environ, "LOCAL_RANK"),
        local_world_size=_number(environ, "LOCAL_WORLD_SIZE"),
        node=_number(environ, "GROUP_RANK"),
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
        run_id=None if run_id in (None, "", "none") else run_id,  # torchrun without --rdzv-id sets "none"
        has_agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true",
        job=f"{job}.{job_step}" if job and job_step else None,
        cuda_connections=_number(environ, "CUDA_DEVICE_MAX_CONNECTIONS"),
        openmp_sleeps=any(environ.get(name, "").strip().lower() == value for name, value in OPENMP_SLEEPS),
        is_torchrun=run_id is not None,
    )


def variables() -> list[str]:
    """Return the names of all variables the profiler reads."""
    return [SWITCH, NATIVE, *(row.variable for row in _ROWS.values())]


def given_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that are set, with their values, by either name."""
    names = (name for variable in variables() for name in (variable, short_name(variable)))
    return {name: environ[name] for name in names if environ.get(name, "").strip()}


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return one sentence for each variable with our prefixes that has no effect."""
    known = variables()
    short = [short_name(name) for name in known]
    kinds = ((SWITCH, known, (ROOT, TRIAL_PLAN)), (SHORT_PREFIX, short, ()))
    return [
        f"{name}={environ[name]!r} is not a setting and has no effect{_nearest(name, names, f'={environ[name]}')}"
        for prefix, names, others in kinds
        for name in sorted(environ)
        if name.startswith(prefix) and name not in (*names, *others)
    ]


def _nearest(name: str, known: Collection[str], value: str = "", cutoff: float = 0.0) -> str:
    begun = sorted((each for each in known if each.startswith(name)), key=len)
    nearest = begun or difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {nearest[0]}{value}?" if nearest else ""


def launch_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the id shared by all processes of this launch; None if the bootstrap did not start them."""
    return environ.get(ROOT, "").partition(":")[2] or None


def is_dumb_terminal(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal shows plain characters only (TERM=dumb)."""
    return environ.get("TERM") == "dumb"
