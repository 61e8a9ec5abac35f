"""The result of ``training-profiler benchmark``: a table, and the same as data."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tabulate import tabulate

from training_profiler.component_benchmark.result import NOISY_FROM, Component, ComponentBenchmark, Timing
from training_profiler.reports.distribution import INDENT
from training_profiler.units import seconds_text

SCHEMA: Final = 1
REST_FROM: Final = 0.05  # part of its parent from which on what is in no component below has a row
HEAVY_FROM: Final = 0.25  # part of its parent from which on it is worth a sentence
NAMED: Final = 3  # names written out of modules that share a row
HEADERS = ("component", "calls", "inputs", "forward", "IQR", "of parent", "of model", "backward", "IQR")


def render_components(benchmark: ComponentBenchmark) -> str:
    """Return the benchmark as text."""
    title = (
        f"{benchmark.kind} of {benchmark.source}: {benchmark.parameters:,} parameters, {benchmark.dtype} on "
        f"{benchmark.device}, {benchmark.mode} mode, {_counted(benchmark.threads, 'thread')}, torch {benchmark.torch}"
    )
    parts = [f"=== Component Benchmark ===\n{title}", _passes(benchmark), _tree(benchmark), *_closing(benchmark)]
    return "\n\n".join(parts) + "\n"


def components_as_data(benchmark: ComponentBenchmark) -> dict[str, Any]:
    """Return the benchmark as JSON can hold it: times in seconds, null where unknown."""
    data = {"schema": SCHEMA, **dataclasses.asdict(benchmark)}
    data["passes"] = {name: _timing_as_data(timing) for name, timing in benchmark.passes.items()}
    data["root"] = _component_as_data(benchmark.root)
    data["never_called"] = [{"name": name, "kind": kind} for name, kind in benchmark.never_called]
    return data


def _component_as_data(component: Component) -> dict[str, Any]:
    data = {field.name: getattr(component, field.name) for field in dataclasses.fields(component)}
    timings = {name: _timing_as_data(data[name]) for name in ("forward", "backward")}
    below = [_component_as_data(child) for child in component.children]
    return data | timings | {"total_s": component.total_s, "children": below}


def _timing_as_data(timing: Timing | None) -> dict[str, Any] | None:
    return None if timing is None else dataclasses.asdict(timing) | {"is_noisy": timing.is_noisy}


def _passes(benchmark: ComponentBenchmark) -> str:
    said = {
        "forward + loss": f"({benchmark.loss})",
        "optimizer step": f"({benchmark.optimizer})",
    }
    rows = [
        (name, seconds_text(timing.median_s), _iqr(timing), timing.measurements * timing.runs_each, said.get(name, ""))
        for name, timing in benchmark.passes.items()
    ]
    return _table(rows, ("pass", "time", "IQR", "runs", ""), lefts=(0, 4))


def _tree(benchmark: ComponentBenchmark) -> str:
    return _table(list(_rows(benchmark.root, "", 0)), HEADERS, lefts=(0, 2))


def _rows(component: Component, above: str, depth: int) -> Iterator[tuple[object, ...]]:
    names = names_text([_below(name, above) for name in component.names])
    label = INDENT * depth + (f"{names}  {component.kind}" if names else component.kind)
    yield (
        label,
        component.calls,
        component.inputs,
        _time(component.forward),
        _iqr(component.forward),
        _share(component.share_of_parent),
        _share(component.share_of_model),
        _time(component.backward),
        _iqr(component.backward),
    )
    for child in component.children:
        yield from _rows(child, component.names[0], depth + 1)
    rest_s, forward = component.rest_s, component.forward
    if rest_s is not None and forward is not None and rest_s >= REST_FROM * forward.median_s:
        of_parent = rest_s / forward.median_s
        of_model = None if component.share_of_model is None else of_parent * component.share_of_model
        name = INDENT * (depth + 1) + "(in no module)"
        yield name, component.calls, "", seconds_text(rest_s), "", _share(of_parent), _share(of_model), "", ""


def _closing(benchmark: ComponentBenchmark) -> Iterator[str]:
    path = _heaviest(benchmark.root)
    if path:
        yield "Heaviest: " + "; ".join(path)
    notes = list(benchmark.notes)
    notes += [f"{component.names[0]} ({component.kind}): {note}" for component, note in _noted(benchmark.root)]
    notes += _never_called(benchmark)
    timings = [*benchmark.passes.values(), *_timings(benchmark.root)]
    if any(timing.is_noisy for timing in timings):
        notes.append(
            f"noisy, marked ~: half of the measurements lie more than {NOISY_FROM:.0%} apart; close other programs, "
            "or raise --min-run-time"
        )
    if any(timing.spread is None for timing in timings):
        notes.append("too few measurements to tell how far they lie apart, marked ?: raise --min-run-time")
    if notes:
        yield "\n".join(f"- {note}" for note in dict.fromkeys(notes))


def _heaviest(root: Component) -> list[str]:
    """Return the way down the tree along the costliest part of each."""
    sentences = []
    parent = root
    while parent.children and (parent.children[0].share_of_parent or 0.0) >= HEAVY_FROM:
        child = parent.children[0]
        share = child.share_of_parent or 0.0
        assert child.forward is not None
        times = f"{_counted(child.calls, 'call')} of " if child.calls > 1 else ""
        name = names_text([_below(name, parent.names[0]) for name in child.names])
        sentences.append(
            f"{name} ({child.kind}) {times}{seconds_text(child.forward.median_s)}, {share:.0%} of its {parent.kind}"
        )
        parent = child
    return sentences


def _never_called(benchmark: ComponentBenchmark) -> list[str]:
    by_kind: dict[str, list[str]] = {}
    for name, kind in benchmark.never_called:
        by_kind.setdefault(kind, []).append(name)
    return [f"never called, so not timed: {names_text(names)} ({kind})" for kind, names in by_kind.items()]


def _noted(component: Component) -> Iterator[tuple[Component, str]]:
    if component.note:
        yield component, component.note
    for child in component.children:
        yield from _noted(child)


def _timings(component: Component) -> Iterator[Timing]:
    yield from (timing for timing in (component.forward, component.backward) if timing is not None)
    for child in component.children:
        yield from _timings(child)


def names_text(names: list[str]) -> str:
    """Return the names of modules in short: blocks.0 and blocks.1 are blocks.*; of many the first few."""
    patterns: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        patterns.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    texts = [pattern if len(found) > 1 else found[0] for pattern, found in patterns.items()]
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _below(name: str, above: str) -> str:
    """Return ``name`` as it is called by what has the name ``above``, or a sibling of that."""
    parts, depth = name.split("."), len(above.split(".")) if above else 0
    pattern = re.sub(r"(?<![^.])\d+(?![^.])", r"\\d+", re.escape(above).replace(r"\.", "."))
    return ".".join(parts[depth:]) if not above or re.match(pattern + r"\.", name) else name


def _table(rows: Sequence[tuple[object, ...]], headers: tuple[str, ...], lefts: tuple[int, ...]) -> str:
    align = ["left" if i in lefts else "right" for i in range(len(headers))]
    cells = [tuple("" if cell is None else cell for cell in row) for row in rows]
    text = tabulate(cells, headers=headers, colalign=align, disable_numparse=True, preserve_whitespace=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _time(timing: Timing | None) -> str:
    return "" if timing is None else seconds_text(timing.median_s)


def _iqr(timing: Timing | None) -> str:
    if timing is None:
        return ""
    if timing.spread is None:
        return "?"
    return f"{'~' if timing.is_noisy else ''}{timing.spread:.1%}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
