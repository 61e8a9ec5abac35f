"""The category of events, from the one in the file and their names."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import numpy as np

from training_profiler.trace_analysis.load.columns import CATEGORIES, CATEGORY_IDS, Ints
from training_profiler.trace_analysis.load.numbers import Numbers

MTIA_WORK: Final = "mtia_ccp_events"
_MTIA_COPY: Final = "dma_request"
_MTIA_EVENTS: Final = ("event_wait", "event_record")  # occupy a stream, compute nothing
# Old versions give these the category of operators.
_ANNOTATIONS: Final = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "## ")
_PLAIN, _ANNOTATION, _COPY, _EVENT = range(4)  # what a name says
_OF_MTIA: Final = len(CATEGORY_IDS)


def _table() -> Ints:
    """Return the category for each one of the file (the last is MTIA's) and for what the name says."""
    table = np.repeat(np.append(np.arange(_OF_MTIA), CATEGORY_IDS[CATEGORIES[MTIA_WORK]])[:, None], 4, axis=1)
    table[CATEGORY_IDS["cpu_op"], _ANNOTATION] = CATEGORY_IDS["user_annotation"]
    table[_OF_MTIA, _COPY] = CATEGORY_IDS["gpu_memcpy"]
    table[_OF_MTIA, _EVENT] = CATEGORY_IDS["other"]
    return table


_TABLE: Final = _table()


class Categories:
    """The categories of events whose names and tracks (category, pid, tid) are numbered; both may grow."""

    def __init__(self, names: Numbers, tracks: Numbers) -> None:
        self._of_names = _Growing(names, _named)
        self._of_tracks = _Growing(tracks, lambda track: _given(track[0]))

    def of(self, name: Ints, track: Ints) -> Ints:
        """Return the category of each event."""
        return _TABLE[self._of_tracks.values()[track], self._of_names.values()[name]]


class _Growing:
    """A number for each distinct value; only new values are looked at."""

    def __init__(self, numbers: Numbers, number_of: Callable[[Any], int]) -> None:
        self._numbers = numbers
        self._number_of = number_of
        self._known = np.empty(0, np.int64)

    def values(self) -> Ints:
        new = list(islice(reversed(self._numbers), len(self._numbers) - len(self._known)))
        if new:
            self._known = np.append(self._known, [self._number_of(value) for value in reversed(new)])
        return self._known


def _named(name: Any) -> int:
    if str(name).startswith(_ANNOTATIONS):
        return _ANNOTATION
    return _COPY if name == _MTIA_COPY else _EVENT if name in _MTIA_EVENTS else _PLAIN


def _given(category: Any) -> int:
    return _OF_MTIA if category == MTIA_WORK else CATEGORY_IDS[CATEGORIES.get(str(category).lower(), "other")]
