"""Which sections a thread is in just now, as another thread can see it."""

from collections.abc import Mapping, Sequence

from training_profiler.record.section import INFERRED, LOADER, SECTION_MASK, ThreadBuffer


def inside_now(
    buffer: ThreadBuffer, names: Mapping[int, str], before: Sequence[str] = ()
) -> tuple[tuple[str, ...], int | None]:
    """Return the sections that the thread of ``buffer`` is in, the outermost first, and when it entered the last.

    The thread is not waited for; at the very moment of a drain a section may be missing. None is unknown.

    Args:
        buffer: of the thread.
        names: of sections, by their number.
        before: those that it was in at the last drain.
    """
    events = buffer.events[:]
    stack: list[tuple[str, int | None, bool]] = [(name, None, False) for name in before]
    for at_ns, code in zip(events[::2], events[1::2], strict=False):
        number = abs(code)
        if number & LOADER:
            continue
        name = names.get(number & SECTION_MASK, "")
        if code > 0:
            stack.append((name, at_ns, bool(number & INFERRED)))
            continue
        for row in range(len(stack) - 1, -1, -1):
            if stack[row][0] == name:
                del stack[row]
                break
    by_hand = next((row for row, (_, _, is_inferred) in enumerate(stack) if not is_inferred), len(stack))
    kept = [section for row, section in enumerate(stack) if row <= by_hand or not section[2]]  # seams yield to the user
    return tuple(name for name, _, _ in kept), kept[-1][1] if kept else None
