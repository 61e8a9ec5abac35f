"""Requests for stacks, and the stacks that ranks have written, as files in the run folder."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from training_profiler.model.bounds import Moment, fit
from training_profiler.model.ranks import RankStacks
from training_profiler.safety.files import is_folder, make_inner_folder, read_file, replace_file

FOLDER: Final = "stacks"
REQUEST: Final = "request.json"
MOST_BYTES: Final = 1 << 20
MOST_REQUEST_BYTES: Final = 1000
_NAME: Final = re.compile(r"rank(\d{1,7})\.json")


class _Request(msgspec.Struct, frozen=True):
    asked_ns: Moment


def write_request(run_folder: Path, asked_ns: int) -> None:
    """Ask every rank of a running training for its stacks.

    Raises:
        OSError: the request cannot be written.
    """
    _write(run_folder, REQUEST, msgspec.json.encode(_Request(asked_ns)))


def read_request(run_folder: Path) -> int | None:
    """Return when stacks were last asked for, by the wall clock; None if they never were."""
    with suppress(OSError, ValueError):
        return msgspec.json.decode(read_file(run_folder / FOLDER / REQUEST, MOST_REQUEST_BYTES), type=_Request).asked_ns
    return None


def write_stacks(run_folder: Path, stacks: RankStacks) -> None:
    """Write the stacks of a rank in place of its earlier ones.

    Raises:
        OSError: they cannot be written.
    """
    _write(run_folder, f"rank{stacks.rank}.json", encode_stacks(stacks))


def _write(run_folder: Path, name: str, data: bytes) -> None:
    folder = run_folder / FOLDER
    make_inner_folder(folder)
    replace_file(folder / name, data, folder / f"{name}.{os.getpid()}.part")


def read_stacks(run_folder: Path, asked_ns: int | None = None) -> Mapping[int, RankStacks]:
    """Return the stacks in a run folder, by rank: those of one request, or by default those of the last answered one.

    Files that are not ours are left out.
    """
    folder = run_folder / FOLDER
    try:
        names = sorted(os.listdir(folder)) if is_folder(folder) else []
    except OSError:
        return {}
    found = []
    for match in filter(None, map(_NAME.fullmatch, names)):
        with suppress(OSError, ValueError):
            stacks = decode_stacks(read_file(folder / match[0], MOST_BYTES))
            found += [stacks] if stacks is not None and stacks.rank == int(match[1]) else []
    if asked_ns is None:
        asked_ns = max((stacks.asked_ns for stacks in found), default=0)
    return {stacks.rank: stacks for stacks in sorted(found, key=lambda each: each.rank) if stacks.asked_ns == asked_ns}


def encode_stacks(stacks: RankStacks) -> bytes:
    """Return stacks as JSON."""
    return msgspec.json.encode(stacks)


def decode_stacks(data: bytes) -> RankStacks | None:
    """Return the stacks that ``encode_stacks`` was called on, their texts fit for a terminal; None for other data."""
    with suppress(ValueError, RecursionError):  # it may be nested too deeply
        return fit(msgspec.json.decode(data, type=RankStacks))
    return None
