"""The result of ``training-profiler benchmark`` as a table and as data."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, Final

from training_profiler.base.table import table, with_details, wrapped
from training_profiler.base.units import counted, ms_number, time_text
from training_profiler.component_benchmark.result import NOISY_FROM, ComponentBenchmark, MeasuredModule, Timing

SCHEMA: Final = 1
REST_FROM: Final = 0.05  # share of the parent from which time outside of modules has its own row
HEAVY_FROM: Final = 0.25  # share of the parent from which a component is named as heavy
NAMED: Final = 3  # names shown of modules that share a row
INDENT: Final = "  "
HEADERS: Final = (
    "component\n(times in ms)",
    "calls",
    "forward",
    "IQR",
    "of\nparent",
    "of\nmodel",
    "backward",
    "IQR",
)


def render_components(benchmark: ComponentBenchmark) -> str:
    """Return the benchmark as text."""
    title = (
        f"{benchmark.kind} of {benchmark.source}: {benchmark.parameters:,} parameters, {benchmark.dtype} on "
        f"{benchmark.device}, {benchmark.mode} mode, {counted(benchmark.threads, 'thread')}, torch {benchmark.torch}"
    )
    parts = [
        f"=== Component Benchmark ===\n{wrapped(title)}",
        _passes(benchmark),
        _tree(benchmark),
        *_closing(benchmark),
    ]
    return "\n\n".join(parts) + "\n"


def components_as_data(benchmark: ComponentBenchmark) -> dict[str, Any]:
    """Return the benchmark as JSON data: times in seconds, null if unknown."""
    data = {"schema": SCHEMA, **dataclasses.asdict(benchmark)}
    data["passes"] = {name: _timing_as_data(timing) for name, timing in benchmark.passes.items()}
    data["root"] = _component_as_data(benchmark.root)
    data["never_called"] = [{"name": name, "kind": kind} for name, kind in benchmark.never_called]
    return data


def _component_as_data(component: MeasuredModule) -> dict[str, Any]:
    data = {field.name: getattr(component, field.name) for field in dataclasses.fields(component)}
    timings = {name: _timing_as_data(data[name]) for name in ("forward", "backward")}
    below = [_component_as_data(child) for child in component.children]
    return data | timings | {"total_s": component.total_s, "children": below}


def _timing_as_data(timing: Timing | None) -> dict[str, Any] | None:
    return None if timing is None else dataclasses.asdict(timing) | {"is_noisy": timing.is_noisy}


def _passes(benchmark: ComponentBenchmark) -> str:
    notes = {
        "forward + loss": f"({benchmark.loss})",
        "optimizer step": f"({benchmark.optimizer})",
    }
    rows = [
        (name, time_text(timing.median_s), _iqr(timing), timing.measurements * timing.runs_each, notes.get(name, ""))
        for name, timing in benchmark.passes.items()
    ]
    return table(("pass", "time", "IQR", "runs", ""), rows, left=(0, 4), name=4)


def _tree(benchmark: ComponentBenchmark) -> str:
    rows, details = zip(*_rows(benchmark.root, "", 0), strict=True)
    return with_details(table(HEADERS, rows), details, indent="")


def _rows(component: MeasuredModule, above: str, depth: int) -> Iterator[tuple[tuple[object, ...], str]]:
    """Yield the cells of each row and the line below it."""
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
    notes = list(benchmark.notes)
    notes += [f"{component.names[0]} ({component.kind}): {note}" for component, note in _noted(benchmark.root)]
    notes += _never_called(benchmark)
    timings = [*benchmark.passes.values(), *_timings(benchmark.root)]
    if any(timing.is_noisy for timing in timings):
        notes.append(
            f"noisy, marked ~: the middle half of the measurements spreads over more than {NOISY_FROM:.0%}; close "
            "other programs, or raise --min-run-time"
        )
    if any(timing.spread is None for timing in timings):
        notes.append("too few measurements for a spread, marked ?: raise --min-run-time")
    if notes:
        yield "\n".join(wrapped(note, "- ", INDENT) for note in dict.fromkeys(notes))


def _heaviest(root: MeasuredModule) -> list[str]:
    """Return the path down the tree along the slowest child of each component."""
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


def _never_called(benchmark: ComponentBenchmark) -> list[str]:
    by_kind: dict[str, list[str]] = {}
    for name, kind in benchmark.never_called:
        by_kind.setdefault(kind, []).append(name)
    return [f"never called, so not timed: {names_text(names)} ({kind})" for kind, names in by_kind.items()]


def _noted(component: MeasuredModule) -> Iterator[tuple[MeasuredModule, str]]:
    if component.note:
        yield component, component.note
    for child in component.children:
        yield from _noted(child)


def _timings(component: MeasuredModule) -> Iterator[Timing]:
    yield from (timing for timing in (component.forward, component.backward) if timing is not None)
    for child in component.children:
        yield from _timings(child)


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
