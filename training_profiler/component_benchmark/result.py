"""The result of a component benchmark, in seconds, and the stopwatch that measures it."""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from training_profiler.base.table import table, with_details, wrapped
from training_profiler.base.units import counted, ms_number, time_text

# Importing the clock looks for a compiler of CUDA, and warns if there is one without a device.
_log = logging.getLogger("torch.utils.cpp_extension")
_level = _log.level
_log.setLevel(logging.ERROR)
from torch.utils.benchmark import Measurement, Timer  # noqa: E402

_log.setLevel(_level)

ENOUGH: Final = 5  # measurements; with fewer, quartiles mean nothing
MOST_TIME: Final = 5.0  # limit for reaching ENOUGH, in multiples of min_run_time_s


@dataclass(frozen=True)
class Timing:
    """The duration of one execution, from many measurements."""

    median_s: float
    iqr_s: float | None = None  # between the quartiles; None with too few measurements
    measurements: int = 1
    runs_each: int = 1  # executions per measurement, which is their mean

    @property
    def spread(self) -> float | None:
        """Return the IQR as a part of the median, or None."""
        return self.iqr_s / self.median_s if self.iqr_s is not None and self.median_s > 0 else None

    @property
    def is_noisy(self) -> bool:
        """Return whether the measurements differ by more than a tenth."""
        return self.spread is not None and self.spread > NOISY_FROM


@dataclass(frozen=True)
class MeasuredModule:
    """Equal calls of modules: same class, same shapes of parameters and inputs, same caller."""

    kind: str  # class
    names: tuple[str, ...]  # of the modules, as in named_modules()
    inputs: str  # shapes
    calls: int  # in one forward pass of the model
    parameters: int  # of one of the modules
    forward: Timing | None
    backward: Timing | None
    note: str | None  # why something was not measured, or how
    share_of_parent: float | None  # of the forward time of all calls of its parent
    share_of_model: float | None
    rest_s: float | None  # of one call: forward time outside of its children, by difference
    children: tuple["MeasuredModule", ...] = ()

    @property
    def total_s(self) -> float | None:
        """Return the forward time of all calls in one pass of the model."""
        return None if self.forward is None else self.calls * self.forward.median_s


@dataclass(frozen=True)
class ComponentBenchmark:
    """A model, its passes and its components."""

    source: str  # MODULE:FACTORY
    kind: str
    parameters: int
    device: str
    dtype: str
    mode: str  # train, eval or mixed
    threads: int
    torch: str
    passes: Mapping[str, Timing]  # forward, forward + loss, backward, optimizer step: those that were measured
    loss: str  # name of the loss
    root: MeasuredModule
    optimizer: str
    never_called: tuple[tuple[str, str], ...] = ()  # (name, class)
    notes: tuple[str, ...] = ()


# Returns the duration of one run; the text names it in the progress display.
Stopwatch = Callable[[str, Callable[[], object]], Timing]


class TorchStopwatch:
    """Repeats a run for a given time, in blocks long enough for the clock."""

    def __init__(
        self, threads: int | None, min_run_time_s: float, show_progress: Callable[[str], None] = lambda what: None
    ) -> None:
        self.threads = threads or torch.get_num_threads()
        self._min_run_time_s, self._show_progress = min_run_time_s, show_progress

    def __call__(self, what: str, run: Callable[[], object]) -> Timing:
        """Return the median over blocks of runs, and their interquartile range."""
        self._show_progress(what)
        timer = Timer("run()", globals={"run": run}, num_threads=self.threads)
        first = timer.blocked_autorange(min_run_time=self._min_run_time_s)
        blocks = [first]
        taken_s = sum(first.raw_times)
        while sum(len(block.times) for block in blocks) < ENOUGH and taken_s < MOST_TIME * self._min_run_time_s:
            blocks.append(timer.timeit(first.number_per_run))
            taken_s += sum(blocks[-1].raw_times)
        (merged,) = Measurement.merge(blocks)
        count = len(merged.times)
        return Timing(merged.median, merged.iqr if count >= ENOUGH else None, count, first.number_per_run)


NOISY_FROM: Final = 0.1  # IQR over median; half of the measurements of a quiet machine lie within a few percent


SCHEMA: Final = 1
REST_FROM: Final = 0.05  # share of the parent from which time outside of modules has its own row
HEAVY_FROM: Final = 0.25  # share of the parent from which a component is named as heavy
NAMED: Final = 3  # names shown of modules that share a row
INDENT: Final = "  "
HEADERS: Final = ("component\n(times in ms)", "calls", "forward", "IQR", "of\nparent", "of\nmodel", "backward", "IQR")


def render_components(benchmark: ComponentBenchmark) -> str:
    """Return the benchmark as text."""
    title = (
        f"{benchmark.kind} of {benchmark.source}: {benchmark.parameters:,} parameters, {benchmark.dtype} on "
        f"{benchmark.device}, {benchmark.mode} mode, {counted(benchmark.threads, 'thread')}, torch {benchmark.torch}"
    )
    rows, details = zip(*_rows(benchmark.root, "", 0), strict=True)
    parts = [
        f"=== Component Benchmark ===\n{wrapped(title)}",
        _passes(benchmark),
        with_details(table(HEADERS, rows), details, indent=""),
        *_closing(benchmark),
    ]
    return "\n\n".join(parts) + "\n"


def components_as_data(benchmark: ComponentBenchmark) -> dict[str, Any]:
    """Return the benchmark as JSON data: times in seconds, null if unknown."""
    never_called = [{"name": name, "kind": kind} for name, kind in benchmark.never_called]
    return {"schema": SCHEMA, **_as_data(benchmark), "never_called": never_called}


def _as_data(value: Any) -> Any:
    """Return records in each other as dictionaries, with the properties that users ask for."""
    if isinstance(value, tuple):
        return [_as_data(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_data(each) for name, each in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    names = [*(field.name for field in dataclasses.fields(value)), "is_noisy", "total_s"]
    return {name: _as_data(getattr(value, name)) for name in names if hasattr(value, name)}


def _passes(benchmark: ComponentBenchmark) -> str:
    notes = {"forward + loss": f"({benchmark.loss})", "optimizer step": f"({benchmark.optimizer})"}
    rows = [
        (name, time_text(timing.median_s), _iqr(timing), timing.measurements * timing.runs_each, notes.get(name, ""))
        for name, timing in benchmark.passes.items()
    ]
    return table(("pass", "time", "IQR", "runs", ""), rows, left=(0, 4), name=4)


def _rows(component: MeasuredModule, above: str, depth: int) -> Iterator[tuple[tuple[object, ...], str]]:
    names = names_text([_below(name, above) for name in component.names])
    kind = f"{component.kind}, " if names else ""
    yield (
        (
            INDENT * depth + (names or component.kind),
            component.calls,
            _time(component.forward),
            _iqr(component.forward),
            _share(component.share_of_parent),
            _share(component.share_of_model),
            _time(component.backward),
            _iqr(component.backward),
        ),
        f"{INDENT * (depth + 2)}{kind}inputs {component.inputs}",
    )
    for child in component.children:
        yield from _rows(child, component.names[0], depth + 1)
    rest_s, forward = component.rest_s, component.forward
    if rest_s is not None and forward is not None and rest_s >= REST_FROM * forward.median_s:
        of_parent = rest_s / forward.median_s
        of_model = None if component.share_of_model is None else of_parent * component.share_of_model
        name = INDENT * (depth + 1) + "(in no module)"
        yield (name, component.calls, ms_number(rest_s), "", _share(of_parent), _share(of_model), "", ""), ""


def _closing(benchmark: ComponentBenchmark) -> Iterator[str]:
    path = _heaviest(benchmark.root)
    if path:
        yield wrapped("Heaviest: " + "; ".join(path), rest=INDENT)
    components = list(_with_children(benchmark.root))
    notes = [*benchmark.notes, *(f"{one.names[0]} ({one.kind}): {one.note}" for one in components if one.note)]
    by_kind: dict[str, list[str]] = {}
    for name, kind in benchmark.never_called:
        by_kind.setdefault(kind, []).append(name)
    notes += [f"never called, so not timed: {names_text(names)} ({kind})" for kind, names in by_kind.items()]
    timings = [*benchmark.passes.values(), *(timing for one in components for timing in (one.forward, one.backward))]
    if any(timing.is_noisy for timing in timings if timing):
        notes.append(
            f"noisy, marked ~: the middle half of the measurements spreads over more than {NOISY_FROM:.0%}; close "
            "other programs, or raise --min-run-time"
        )
    if any(timing.spread is None for timing in timings if timing):
        notes.append("too few measurements for a spread, marked ?: raise --min-run-time")
    if notes:
        yield "\n".join(wrapped(note, "- ", INDENT) for note in dict.fromkeys(notes))


def _heaviest(root: MeasuredModule) -> list[str]:
    sentences = []
    parent = root
    while parent.children and (parent.children[0].share_of_parent or 0.0) >= HEAVY_FROM:
        child = parent.children[0]
        share = child.share_of_parent or 0.0
        assert child.forward is not None
        times = f"{counted(child.calls, 'call')} of " if child.calls > 1 else ""
        name = names_text([_below(name, parent.names[0]) for name in child.names])
        sentences.append(
            f"{name} ({child.kind}) {times}{time_text(child.forward.median_s)}, {share:.0%} of its {parent.kind}"
        )
        parent = child
    return sentences


def _with_children(component: MeasuredModule) -> Iterator[MeasuredModule]:
    yield component
    for child in component.children:
        yield from _with_children(child)


def names_text(names: list[str]) -> str:
    """Return the names of modules in short: blocks.* for blocks.0 and blocks.1, and only the first few."""
    patterns: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        patterns.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    texts = [pattern if len(matches) > 1 else matches[0] for pattern, matches in patterns.items()]
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _below(name: str, above: str) -> str:
    """Return ``name`` relative to ``above``, or to a sibling of ``above`` that differs in a number."""
    parts, depth = name.split("."), len(above.split(".")) if above else 0
    pattern = re.sub(r"(?<![^.])\d+(?![^.])", r"\\d+", re.escape(above).replace(r"\.", "."))
    return ".".join(parts[depth:]) if not above or re.match(pattern + r"\.", name) else name


def _time(timing: Timing | None) -> str:
    return "" if timing is None else ms_number(timing.median_s)


def _iqr(timing: Timing | None) -> str:
    if timing is None:
        return ""
    if timing.spread is None:
        return "?"
    return f"{'~' if timing.is_noisy else ''}{timing.spread:.1%}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
