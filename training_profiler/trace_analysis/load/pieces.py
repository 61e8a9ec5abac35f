"""Cuts the JSON of a trace between two events, into pieces that are traces themselves."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from training_profiler.base.units import BYTES_PER_MIB

MOST_PIECE_BYTES: Final = 4 * BYTES_PER_MIB
# The begin of the list of events, and the first key of the first event.
_LIST: Final = re.compile(rb'("traceEvents"\s*:\s*\[|^\s*\[)\s*\{\s*("[^"\\]*")')
_NEAR_END: Final = 1 << 16  # bytes in which an event ends


class NoPiecesError(ValueError):
    """The JSON is not written so that it can be cut; it may be a trace all the same."""


def pieces_of(chunks: Iterable[bytes]) -> Iterator[bytearray]:
    """Yield the pieces of the JSON in ``chunks``; each has a part of the events.

    A cut goes where an object ends and another begins with the key that the first event begins with. If that is not
    between two events of the list, such as within the arguments of one, the piece is not JSON.

    Raises:
        NoPiecesError: There is no place for a cut.
    """
    buffer = bytearray()
    opening, closing, between = b"", b"", None
    for chunk in chunks:
        buffer += chunk
        if between is None:
            found = _LIST.search(buffer)
            if found is not None:
                opening, closing = (b"[", b"]") if found[1].lstrip() == b"[" else (b'{"traceEvents":[', b"]}")
                between = re.compile(rb"\}\s*(,)\s*\{\s*" + re.escape(found[2]))
        cut = between and between.search(buffer, max(0, len(buffer) - _NEAR_END))
        if cut:
            rest = opening + buffer[cut.end(1) :]
            end = cut.start(1)
            del cut  # it holds the buffer, which then cannot change its length
            buffer[end:] = closing
            yield buffer
            buffer = bytearray(rest)
        elif len(buffer) > MOST_PIECE_BYTES:
            raise NoPiecesError
    yield buffer
