"""Line samples as a flame view: boxes in boxes, each as wide as its part of the samples."""

from collections import Counter
from typing import Final

from training_profiler.page.html import Html, element, joined
from training_profiler.reports.stacks import Stack

SHOWN_FROM: Final = 0.002  # of all samples
MOST_DEPTH: Final = 30


def flame(stacks: Counter[Stack], label: str = "Flame view of the line samples") -> Html:
    """Return the boxes; nothing without samples. A screen reader reads the label."""
    whole = stacks.total()
    if not whole:
        return Html("")
    boxes = _boxes(stacks, 0, whole)
    return element("div", boxes, class_="flame", role="group", aria_label=label)


def _boxes(stacks: Counter[Stack], depth: int, whole: int) -> Html:
    """Return the boxes of all frames at ``depth``, the widest first, and the room of what is too small."""
    by_frame: dict[str, Counter[Stack]] = {}
    for stack, samples in stacks.items():
        if len(stack) > depth:
            by_frame.setdefault(stack[depth], Counter())[stack] += samples
    sizes = {frame: inner.total() for frame, inner in by_frame.items()}
    shown = [
        frame for frame in sorted(sizes, key=lambda frame: (-sizes[frame], frame)) if sizes[frame] >= SHOWN_FROM * whole
    ]
    boxes = [_box(frame, by_frame[frame], depth, whole) for frame in shown]
    room = stacks.total() - sum(sizes[frame] for frame in shown)
    if room and boxes:
        boxes.append(element("div", class_="room", style=f"flex-grow:{room}"))
    return joined(boxes)


def _box(frame: str, inner: Counter[Stack], depth: int, whole: int) -> Html:
    samples = inner.total()
    label = f"{frame}: {samples} of {whole} samples, {samples / whole:.1%}"
    button = element("button", frame, type="button", title=label, aria_label=label)
    below = _boxes(inner, depth + 1, whole) if depth < MOST_DEPTH else Html("")
    inside = element("div", below, class_="row") if below else Html("")
    return element("div", button, inside, class_="box", style=f"flex-grow:{samples}")
