"""The recorder in C (native/), which is built where there is a compiler."""

from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

Ints = Any  # arrays of numpy, which recording does not import
Floats = Any
Bools = Any

INTERFACE: int

def Events(values: Iterable[int] = ()) -> list[int]:  # noqa: N802 - a class, which serves as a list does
    """Return events, of which a slice lends its memory to numpy."""

def event_writer(events: list[int], clock: Callable[[], int] | None, code: int) -> Callable[[], None]:
    """Return a function that appends the clock's time and ``code``; without a clock, the system's monotonic one."""

def section_writers(
    buffer: Any,
    clock: Callable[[], int] | None,
    codes: tuple[int, int, int],
    flush: Callable[[], None],
    hide: Callable[[BaseException], None],
) -> tuple[Any, Any, Any]:
    """Return the functions that write an enter, an exit and an exit that does not count, of these codes.

    An exit calls ``flush`` when ``buffer.events`` has more integers than ``buffer.flush_at``, and ``hide`` with what
    that raises.
    """

def split_events(flat: Ints | list[int], rows: Ints) -> None:
    """Write the times and the codes of events, which lie in turns, to the two rows of ``rows``.

    A time before that of an earlier event is replaced by the latter.
    """

def match_events(
    times_ns: Ints,
    codes: Ints,
    open_times_ns: Ints,
    open_codes: Ints,
    ends_ns: Ints,
    from_ns: int,
    is_outside: Bools,
    rename: Callable[[int, int], int],
    most_open: int,
    spans: Ints,
    details: Ints,
    flags: Bools,
    stretches: Ints,
    still_open: Ints,
) -> tuple[int, int, int, int] | None:
    """Find the spans of a block of events, and who owns each moment; see aggregation/thread_blocks.py.

    Return how many leaf spans, spans, stretches and open sections were written to the last five arrays; None if the
    events are not nested.

    Args:
        times_ns: of the events, ascending.
        codes: of the events, without exits that are discarded.
        open_times_ns: of the sections that were open before.
        open_codes: of the same.
        ends_ns: of the pieces of time, ascending.
        from_ns: begin of the first piece.
        is_outside: by section: whether it is outside training steps.
        rename: returns the id of a section inside another one.
        most_open: sections that may be open at the end.
        spans: rows for ids, begins, ends; half as many columns as there are events, and one.
        details: rows for durations, parents, pieces; as many columns.
        flags: rows for "is outside" and "is counted"; as many columns.
        stretches: rows for begins, durations, owners, outer ids, pieces, own times; a column for each event and piece.
        still_open: rows for times and codes, ``most_open`` columns.

    Raises:
        IndexError: an event is of a section that is not in ``is_outside``.
        ValueError: an array is too short, or of other items.
    """

def sum_time(
    spans: Ints,
    details: Ints,
    flags: Bools,
    leaf_count: int,
    span_count: int,
    stretches: Ints,
    stretch_count: int,
    step_rows: Ints,
    complete: int,
    is_forward: Bools,
    self_ns: Ints,
    total_ns: Ints,
    calls: Ints,
    rows: Ints,
) -> None:
    """Add the time of each section in each step to the last four arrays, which are those of ``StepTimes``.

    Raises:
        IndexError: a span or a stretch lies in no section or in no step that there is; then nothing is added.
        ValueError: an array is too short, or of other items.
    """

def add_spans(
    spans: Ints,
    details: Ints,
    flags: Bools,
    span_count: int,
    steps: Ints,
    warmup_steps: int,
    columns: tuple[Ints | Floats, ...],
    parents: dict[tuple[int, int], int],
    cell_bins: Ints,
    cell_begins_ns: Ints,
) -> None:
    """Add spans to ``columns`` and ``parents`` of SectionSums.

    Raises:
        IndexError: a span lies in no section or in no piece of time that there is; then nothing is added.
        ValueError: an array is too short, or of other items.
    """

def code_ids(frame: FrameType | None, most: int, /) -> tuple[int, ...]:
    """Return the ids of the code of ``frame`` and of those around it, outwards, of ``most`` at most.

    Raises:
        AttributeError: it is no frame.
        ValueError: ``most`` is negative or over 12.
    """

class SectionLookup:
    """Finds the section of a name on the calling thread.

    Args:
        missing: is called with a name that is not found, and returns its section.
    """

    def __init__(self, missing: Callable[[Any], Any]) -> None: ...
    def find(self, name: Any) -> Any:
        """Return the section of ``name`` on the calling thread."""

    def use(self, sections: dict[Any, Any]) -> None:
        """Find the sections of the calling thread in ``sections`` from now on."""

    def drop(self, sections: dict[Any, Any]) -> None:
        """Let go of the sections of a thread that has ended."""

class HandoverLock:
    """A closed lock on which a thread sleeps; when its sleep ends, the main thread hands over the GIL to it."""

    def acquire(self, blocking: bool, timeout: float, /) -> bool:
        """Sleep until ``release`` or for ``timeout`` seconds; return whether it was released."""

    def release(self) -> None:
        """Wake the thread that sleeps, once; from then on nothing is handed over.

        Raises:
            RuntimeError: it was released before.
        """

    def waited_ns(self) -> int:
        """Return how long the main thread has waited for the sleeping thread to take over, in ns."""

    def was_handed_over(self) -> bool:
        """Return whether the main thread ran Python when the latest sleep ended.

        False: it had given up the GIL by itself, in a call that waits or computes without it.
        """

class Fields:
    """The base of a class whose attributes the fast paths read, too; see fields.py."""

class FastPath:
    """Does what ``FastPath`` in instrumentation/fast_path.py does, which documents each method.

    Args:
        thread: the training thread.
        updates: the updates under way.
        gradients: what asks more of them than their times.
        training: the phase of a pass over a loader that feeds the training.

    Raises:
        TypeError: the first three are no ``Fields``.
    """

    def __init__(self, thread: Fields, updates: Fields, gradients: Fields, training: object) -> None: ...
    def call_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType, /) -> Any: ...
    def call_ends(self, call: Fields, module: Any, detector: Fields, /) -> bool: ...
    def fetch_begins(self, iterator: Any, /) -> Any: ...
    def fetch_ends(self, loader_pass: Fields, detector: Fields, batch: object, /) -> None: ...
    def backward_begins(self, keeps_graph: object, creates_graph: object, /) -> Any: ...
    def backward_ends(self, detector: Fields, /) -> None: ...
    def transfer_begins(self) -> Any: ...
    def transfer_ends(self, detector: Fields, /) -> None: ...
    def clearing_begins(self) -> int: ...
    def clearing_ends(self, code: int, detector: Fields, /) -> None: ...
    def update_begins(self, optimizer: Any, frame: FrameType, /) -> bool: ...
    def update_ends(self, optimizer: Any, /) -> bool: ...
    def use_library(self, is_grad_enabled: Callable[[], bool], tensor: type, /) -> bool: ...
    def forget(self) -> None: ...
    is_step_expected: bool

class Front:
    """Stands in front of the function of a patch: it makes and records nearly every call of a training under way.

    Where it is an attribute of a class, only calls meet it; whoever looks it up gets ``patch``. Windows has none.

    Args:
        kind: of the calls: "module", "clearing", "before update", "after update", "fetch", "transfer", or "to": a
            transfer if its arguments name a device.
        path: records the calls.
        original: the function that the program calls. A module's call is made by its ``_call_impl``.
        patch: makes and records every other call.
        ended: called at an end that needs more than its time: of a module, with the detector, the call and the module;
            of a fetch that returns no batch, with the pass, the detector and whether the pass is over.
        captured: while it is not empty, ``patch`` makes every update.
        on_error: called with an error of the profiler's own.
        tensor, device: torch's classes of these, for "transfer" and "to".

    Raises:
        TypeError: ``path`` is none.
        ValueError: there is no such kind, or it needs the classes.
    """

    def __init__(
        self,
        kind: str,
        path: FastPath,
        original: Callable[..., Any],
        patch: Callable[..., Any],
        ended: Callable[..., None] | None,
        captured: Any,
        on_error: Callable[[Exception], None],
        tensor: type = ...,
        device: type = ...,
        /,
    ) -> None: ...
    patch: Callable[..., Any]
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
