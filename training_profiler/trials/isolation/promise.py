"""What holds during a trial and what does not, in words for the user, and how trackers stay offline."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

from training_profiler.base.units import BYTES_PER_GIB
from training_profiler.tables.trackers import MLFLOW, WANDB
from training_profiler.trials.isolation.plan import GUARDED, NAMESPACES, SHARED_PROCESSES, UNGUARDED, Plan

WIDTH: Final = 78  # of a terminal
MOST_FILES: Final = 500
HOLDS: Final = {
    NAMESPACES: "Your files stay as they are: each trial writes to a copy of the file system that is removed after it, "
    "and its processes end with it.",
    SHARED_PROCESSES: "Your files stay as they are: each trial writes to a copy of the file system that is removed "
    "after it, and its processes are ended.",
    GUARDED: "Your files stay as they are: each trial runs in a copy of this folder that is then removed, and the "
    "kernel refuses what it would write elsewhere. Its processes are ended after it.",
    UNGUARDED: "Each trial runs in a copy of this folder that is then removed. Not promised here: what it writes "
    "elsewhere stays. Processes are ended after it.",
}


class DisabledTracker(NamedTuple):
    """A library that sends what a training measures to other machines."""

    module: str
    name: str
    variables: Mapping[str, str]
    """The variables that ask it to stay offline."""
    is_held: bool = False
    """Whether it stays offline also where the program asks for the opposite; a test shows it."""


TRACKERS: Final = (
    DisabledTracker(WANDB.name, "W&B", {"WANDB_MODE": "offline"}, is_held=True),
    DisabledTracker(MLFLOW.name, "MLflow", {"MLFLOW_ALLOW_FILE_STORE": "true"}, is_held=True),
    DisabledTracker("comet_ml", "Comet", {"COMET_START_ONLINE": "0"}),
    DisabledTracker("neptune", "Neptune", {"NEPTUNE_MODE": "offline"}),
    DisabledTracker("clearml", "ClearML", {"CLEARML_OFFLINE_MODE": "1"}),
    DisabledTracker("swanlab", "SwanLab", {"SWANLAB_MODE": "offline"}),
    DisabledTracker("huggingface_hub", "Hugging Face Hub", {"HF_HUB_OFFLINE": "1"}),
    DisabledTracker("aim", "Aim", {}),
)
KEPT: Final = {("WANDB_MODE", "disabled"), ("WANDB_MODE", "dryrun"), ("NEPTUNE_MODE", "debug")}


def promise(plan: Plan, found: Sequence[DisabledTracker] | None, free_bytes: int) -> str:
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


def _network(found: Sequence[DisabledTracker] | None) -> str:
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


def offline(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep all trackers offline; what is off already stays so."""
    wanted = {name: value for tracker in TRACKERS for name, value in tracker.variables.items()}
    return {name: value for name, value in wanted.items() if (name, environ.get(name)) not in KEPT}


def trackers_of(script: Path) -> list[DisabledTracker]:
    """Return the trackers that a script, or a module beside it that it imports, imports by name."""
    imported: set[str] = set()
    waiting: list[Path] = [script]
    read: set[Path] = set()
    while waiting and len(read) < MOST_FILES:
        path = waiting.pop()
        if path in read:
            continue
        read.add(path)
        for name in [name for level, name in imports_of(path) if not level]:
            imported.add(name.partition(".")[0])
            place = script.parent.joinpath(*name.split("."))
            waiting += [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    return [tracker for tracker in TRACKERS if tracker.module in imported]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the modules that a file imports: of how many folders up, 0 for any, and the dotted name."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            yield node.level, start
            yield from ((node.level, f"{start}.{alias.name}".lstrip(".")) for alias in node.names)
