"""What holds during a trial and what does not, in words for the user."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from training_profiler.base.units import BYTES_PER_GIB
from training_profiler.trials.isolation.plan import GUARDED, NAMESPACES, REDIRECTED, SHARED_PROCESSES, Plan
from training_profiler.trials.isolation.trackers import Tracker

WIDTH: Final = 78  # of a terminal
HOLDS: Final = {
    NAMESPACES: "Your files stay as they are: each trial writes to a copy of the file system that is removed after it, "
    "and its processes end with it.",
    SHARED_PROCESSES: "Your files stay as they are: each trial writes to a copy of the file system that is removed "
    "after it, and its processes are ended.",
    GUARDED: "Your files stay as they are: what Python writes goes to a folder that is then removed, and the kernel "
    "refuses what other code would write. Its processes are ended after it.",
    REDIRECTED: "What Python writes goes to a folder that is then removed. Not promised here: files written by other "
    "programs, or by libraries in C. Processes are ended after it.",
}


def promise(plan: Plan, found: Sequence[Tracker] | None, free_bytes: int) -> str:
    """Return the lines to show before the first trial.

    Args:
        plan: how trials are kept apart.
        found: the trackers that the program imports; None if its script is not known.
        free_bytes: the free space where trials write.
    """
    place = "memory" if plan.layers_in_memory else f"{free_bytes / BYTES_PER_GIB:.0f} GiB of free disk"
    most = f"at most {plan.most_file_bytes / BYTES_PER_GIB:.1f} GiB a file"
    lines = [HOLDS[plan.way], f"A trial writes to {place}, {most}.", _network(found)]
    return "\n".join(line for text in lines for line in wrap(text, WIDTH))


def _network(found: Sequence[Tracker] | None) -> str:
    parts = ["Not promised: what the program itself sends over the network."]
    if found is None:
        return parts[0]
    held = [tracker.name for tracker in found if tracker.is_held]
    asked = [tracker.name for tracker in found if not tracker.is_held and tracker.variables]
    free = [tracker.name for tracker in found if not tracker.is_held and not tracker.variables]
    if held:
        parts.append(f"Kept offline: {', '.join(held)}.")
    if asked:
        parts.append(f"Asked to stay offline by a variable, which the program can overrule: {', '.join(asked)}.")
    if free:
        parts.append(f"Not held back: {', '.join(free)}.")
    if not found:
        parts.append("The script imports none of the known trackers by name.")
    return " ".join(parts)
