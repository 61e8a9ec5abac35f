"""Makes data of a type that is read from files, with a value in each field: none is missing from a file to damage."""

import json
from collections.abc import Iterator
from typing import Any, cast

from msgspec import inspect

from training_profiler.aggregation.loaders import KINDS
from training_profiler.storage.journal_lines import IntervalLine, SpansLine

LONG = 40  # steps of the interval


def filled(kind: Any) -> Any:
    """Return plain data that ``msgspec`` decodes to ``kind``: each optional value is there, each list has one item."""
    return _filled(inspect.type_info(kind))


def _filled(kind: Any) -> Any:
    if isinstance(kind, inspect.IntType):
        return max(1, kind.ge or 0)
    if isinstance(kind, inspect.FloatType):
        return 0.5
    if isinstance(kind, inspect.StrType):
        return "a"
    if isinstance(kind, inspect.BoolType):
        return True
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.UnionType):
        return _filled(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
    if isinstance(kind, inspect.TupleType):
        return [_filled(each) for each in kind.item_types]
    if isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
        return [_filled(kind.item_type)] * max(1, kind.min_length or 0)
    if isinstance(kind, inspect.DictType):
        return {"1" if isinstance(kind.key_type, inspect.IntType) else "a": _filled(kind.value_type)}
    if isinstance(kind, inspect.NamedTupleType) or (isinstance(kind, inspect.StructType) and kind.array_like):
        return [_filled(field.type) for field in kind.fields]
    if isinstance(kind, (inspect.StructType, inspect.DataclassType)):
        tag = {kind.tag_field: kind.tag} if isinstance(kind, inspect.StructType) and kind.tag_field else {}
        return tag | {field.encode_name: _filled(field.type) for field in kind.fields}
    return {}  # anything


def full_interval(first_step: int) -> dict[str, Any]:
    """Return a line of a journal with each field; its columns belong together."""
    line = cast(dict[str, Any], filled(IntervalLine))
    section = line["sections"]["a"] | {"series_us": [1] * (LONG // 2)}
    return line | {
        "begin_ns": 10**9 * (first_step + 1),
        "end_ns": 10**9 * (first_step + LONG + 1),
        "first_step": first_step,
        "step_ns": [10**9 + 10**6 * (step * step % 7) for step in range(LONG)],
        "disturbed": [3],
        "steps_a_block": 2,
        "sections": dict.fromkeys(("", "forward_pass", "forward_pass/attention", "data_loading"), section),
        "parents": [["", "forward_pass", LONG], ["forward_pass", "forward_pass/attention", LONG]],
        "lines": {"forward_pass": line["step_lines"]},
        "by_loader": [[1] * (1 + 2 * KINDS * 2)],
        "step_calls": [[LONG, 1]],
        "input_sizes": [[1, first_step + 1 + step, 1000.0 + step * step % 7] for step in range(LONG)],
        "machine": line["machine"] | {"levels": {"cpu": [1.0, 0.5, 0.5, 0.5], "ram": [1.0, 0.5, 0.5, 0.5]}},
    }


def full_journal(begin: bytes) -> bytes:
    """Return a journal with that first line, whose other lines have each field."""
    spans = filled(SpansLine)
    spans["steps"][0][-1][0][1:] = [[0], [1], [5]]
    lines = [full_interval(0), full_interval(LONG), spans]
    return begin + b"\n" + b"\n".join(json.dumps(line, separators=(",", ":")).encode() for line in lines) + b"\n"


def unbounded(kind: Any) -> Iterator[str]:
    """Yield the integers in ``kind`` that may be as large as a file says."""
    yield from _unbounded(inspect.type_info(kind), "", set())


def _unbounded(kind: Any, path: str, seen: set[int]) -> Iterator[str]:
    if isinstance(kind, inspect.IntType):
        if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None):
            yield path.removeprefix(".")
        return
    named = getattr(kind, "fields", None)
    inner: list[tuple[str, Any]] = [(field.name, field.type) for field in named or ()]
    inner += [("", each) for each in getattr(kind, "types", getattr(kind, "item_types", ()))]
    inner += [(name, getattr(kind, name)) for name in ("item_type", "key_type", "value_type") if hasattr(kind, name)]
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for name, each in inner:
        yield from _unbounded(each, f"{path}.{name}" if name else path, seen)
