"""Damages files in many ways, the same way for the same seed: bits, lengths, and tokens of JSON."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

MOST_BYTES = 9_000_000
MOST_PARTS = 9_000_000
LONGEST_ROW = 16
RAW = "@raw@"


def raw(token: bytes) -> str:
    """Return a text that stands for a token which json does not write."""
    return RAW + token.hex()


NUMBERS: list[Any] = [
    0, 1, -1, 2, 0.5, -0.0, 1e-320, 1e308, -1e308, 1e18, 2**31, 2**53, 2**62, 2**63, 2**64, 10**30, True, False, None,
    raw(b"NaN"), raw(b"Infinity"), raw(b"-Infinity"), raw(b"1e999"), raw(b"-1e999"), raw(b"9" * 5_000), raw(b"1E3"),
    -2**31, 2**53 + 1, -2**53, 2**61, -2**62, 2**63 - 1, -2**63, -2**63 - 1, -2**64, 2**1024, -2**1024, 10**18, 10**59,
    1e60, -1e60, 1e154, 1e200, 1.7976931348623157e308, 5e-324, 1e-9, -1e-9, 0.1, raw(b"-0"), raw(b"1" + b"0" * 4_000),
    str(2**63), str(2**1024), "-1", "1.5", "0x10", "1_0", "Infinity",
]  # fmt: skip
TEXTS = [
    "", " ", "\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "a\nb\r\nc", "\x00", "\x7f\x85\x9b", "\u202eabc\u2066",
    "\u061c\u200f", "\ud800", "\udc80x", "x" * 10_000, "é" * 500, "\U0001f600", "../../etc/passwd", "-1", "NaN",
    "1e999", "true", "forward_pass", "data_loading", "other", "(profiler)", "(outside steps)", "synchronization",
    "validation_epoch/forward_pass", raw(b'"\xff\xfe"'), "gpu-5.name", "gpu99999.name", "ProfilerStep#1",
    "torch/optim/" * 300,
]  # fmt: skip
_RAW = re.compile(rb'"@raw@((?:[0-9a-f]{2})*)"')
Path = tuple[Any, ...]
# A careless reader takes a step of its own for each, or starts again at each.
SMALL_PARTS = [
    b"\n", b" \n", b"\r\n", b"\t", b" ", b"{}\n", b"x\n", b"1\n", b'\\"', b'"', b"\\", b"}", b"},", b"[", b"{", b",",
    b"0", b"\\ud800", b"\\\n", b'{"kind":"rank"\n', b'{"kind":"end"}\n', b'{"kind":"lost","intervals":1}\n',
    b"\x1f\x8b",
]  # fmt: skip


def mutated(data: bytes, random: Random, others: Sequence[bytes], lines: bool = False) -> bytes:
    """Return a damaged copy of ``data``; ``others`` are other files of its kind, to splice with.

    Args:
        data: the whole file.
        random: where all choices come from.
        others: more files.
        lines: whether each line is JSON of its own.
    """
    if random.random() < 0.25:
        return _numbers(data, random, lines)
    for _ in range(random.choice([1, 1, 1, 2, 3, 8])):
        change = _in_line if lines and random.random() < 0.5 else random.choice([_json, _json, _bytes])
        if lines and random.random() < 0.15:
            data = _shuffled_lines(data, random)
        data = change(data, random, others)[:MOST_BYTES]
    return data


def _shuffled_lines(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    what = random.randrange(4)
    if what == 0:
        lines[at:at] = [lines[random.randrange(len(lines))]] * random.choice([1, 2, 50])
    elif what == 1:
        del lines[at]
    elif what == 2:
        random.shuffle(lines)
    else:
        lines.insert(at, b"[" * random.choice([10, 100_000]))
    return b"\n".join(lines)


def _in_line(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    lines[at] = (_json if random.random() < 0.8 else _bytes)(lines[at], random, others)
    return b"\n".join(lines)


def _numbers(data: bytes, random: Random, lines: bool) -> bytes:
    """Return ``data`` with other numbers in one field, or in a few: whatever reads the file takes the rest of it.

    Fields come up equally often, whether the file has one number of them or thousands.
    """
    pieces = data.split(b"\n") if lines else [data]
    values = [_loaded(piece) for piece in pieces]
    fields: dict[Path, list[tuple[Any, Any]]] = {}
    for value in values:
        for path, inside, key in leaves(value):
            fields.setdefault((lines and type(value) is dict and value.get("kind"), *path), []).append((inside, key))
    for _ in range(random.choice([1, 1, 1, 2, 4]) if fields else 0):
        places = fields[random.choice(sorted(fields, key=repr))]
        other = random.choice(NUMBERS)
        for inside, key in places if random.random() < 0.3 else [random.choice(places)]:
            inside[key] = other
    return b"\n".join(piece if value is None else written(value) for piece, value in zip(pieces, values, strict=True))[
        :MOST_BYTES
    ]


def _loaded(piece: bytes) -> Any:
    try:
        return json.loads(piece)
    except (ValueError, RecursionError):
        return None


def leaves(value: Any) -> Iterator[tuple[Path, Any, Any]]:
    """Yield the numbers in ``value``: the field of each, and the list or dictionary and the key that hold it.

    A place of a row is a field of its own; places of long lists are one.
    """
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, (dict, list)):
            continue
        is_row = isinstance(part, dict) or len(part) <= LONGEST_ROW
        for key, item in part.items() if isinstance(part, dict) else enumerate(part):
            inner = (*path, key if is_row else "*")
            if isinstance(item, (int, float)) or item is None:
                yield inner, part, key
            else:
                waiting.append((inner, item))


def _bytes(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    if not data:
        return bytes(random.randrange(256) for _ in range(random.randrange(50)))
    at, end = sorted((random.randrange(len(data)), random.randrange(len(data) + 1)))
    what = random.randrange(8)
    if what == 7:
        part = random.choice([*SMALL_PARTS, data[at : at + random.choice([1, 2, 5])]]) or b"\n"
        return data[:at] + part * (random.choice([1_000, 100_000, 3_000_000]) // len(part)) + data[at:]
    if what == 0:
        flipped = bytearray(data)
        for _ in range(random.choice([1, 1, 4, 32])):
            flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
        return bytes(flipped)
    if what == 1:
        return data[:at]
    if what == 2:
        return data[:at] + data[min(end, at + 200) :]
    if what == 3:
        return data[:end] + data[at : min(end, at + 2_000)] * random.choice([1, 2, 20]) + data[end:]
    if what == 4:
        other = random.choice(others) if others else data
        return data[:at] + other[random.randrange(len(other) + 1) :]
    if what == 5:
        piece = random.choice([b"\x00", b"\xff", b"{", b"[", b'"', b"\\ud800", b"\n", b"1e999", b"-", b"[" * 5_000])
        return data[:at] + piece + data[at:]
    return data[:at] + bytes(random.randrange(256) for _ in range(min(64, end - at))) + data[end:]


def _json(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, random, others)
    for _ in range(random.choice([1, 1, 2, 5])):
        value = _changed(value, random)
    # A part that was repeated may lie in one that was repeated later: written out, that takes gigabytes.
    try:
        is_large = _count(value, {}) > MOST_PARTS
    except RecursionError:
        is_large = True
    return _bytes(data, random, others) if is_large else written(value)


def _count(value: Any, known: dict[int, int]) -> int:
    """Return the number of parts of ``value``, each as often as it occurs; ten characters of a text are a part."""
    if id(value) not in known:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        own = len(value) // 10 if isinstance(value, str) else len(str(value)) // 10 if isinstance(value, int) else 0
        known[id(value)] = 1 + own + sum(_count(each, known) for each in inner)
    return known[id(value)]


def written(value: Any) -> bytes:
    """Return JSON with the tokens of ``raw`` in it."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return _RAW.sub(lambda match: bytes.fromhex(match[1].decode()), text)


def paths(value: Any) -> list[Path]:
    """Return the paths of all parts of ``value``, without recursion."""
    found: list[Path] = []
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting and len(found) < 20_000:
        path, part = waiting.pop()
        found.append(path)
        if isinstance(part, dict):
            waiting += [((*path, key), item) for key, item in part.items()]
        elif isinstance(part, list):
            waiting += [((*path, i), item) for i, item in enumerate(part)]
    return found


def _changed(value: Any, random: Random) -> Any:
    path = random.choice(paths(value))
    if not path:
        return _other(value, random)
    part = value
    for key in path[:-1]:
        part = part[key]
    key = path[-1]
    what = random.randrange(10)
    if what == 0:
        del part[key]
    elif what == 1 and isinstance(part, dict):
        part[random.choice(TEXTS).removeprefix(RAW)] = part.pop(key)
    elif what == 2 and isinstance(part, dict):
        for i in range(_times(part[key], random)):
            part[f"{key}{i}"] = part[key]
    elif what == 3 and isinstance(part, list):
        part[key:key] = [part[key]] * _times(part[key], random)
    elif what == 4 and isinstance(part, list):
        random.shuffle(part)
    else:
        part[key] = _other(part[key], random)
    return value


def _times(value: Any, random: Random) -> int:
    """Return how often to repeat ``value``: often, unless that would be much."""
    return min(random.choice([1, 100, 3_000]), 1 + 3_000_000 // len(repr(value)))


def _other(value: Any, random: Random) -> Any:
    """Return something in place of ``value``, often of its own type."""
    makers: list[Callable[[], Any]] = [
        lambda: random.choice(NUMBERS),
        lambda: random.choice(TEXTS),
        lambda: random.choice([[], {}, [[]], {"": {}}, [None], [0] * 1_000]),
        lambda: raw(b"[" * 50 + b"]" * 50),
        lambda: raw(b'{"a":' * 2_000 + b"1" + b"}" * 2_000),
        lambda: [value, value],
        lambda: {"a": value},
    ]
    if isinstance(value, (int, float)) and random.random() < 0.7:
        factors = [-1, 0, 2, 10**6, 10**12, 10**18, *([0.001] if abs(value) < 1e300 else [])]
        scaled = lambda: value * random.choice(factors)  # noqa: E731
        makers = [makers[0], scaled, lambda: value + random.choice([-1, 1])]
    elif isinstance(value, str) and random.random() < 0.7:
        makers = [makers[1], lambda: value[:500] + random.choice(TEXTS).removeprefix(RAW), lambda: value[:500] * 200]
    return random.choice(makers)()
