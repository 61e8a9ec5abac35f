"""Trackers and other libraries that send to other machines: which a script imports, and how they stay offline."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from training_profiler.tables.trackers import MLFLOW, WANDB

MOST_FILES: Final = 500


class Tracker(NamedTuple):
    """A library that sends what a training measures."""

    module: str
    name: str
    variables: Mapping[str, str]
    """The variables that ask it to stay offline."""
    is_held: bool = False
    """Whether it stays offline also where the program asks for the opposite; a test shows it."""


TRACKERS: Final = (
    Tracker(WANDB.name, "W&B", {"WANDB_MODE": "offline"}, is_held=True),
    Tracker(MLFLOW.name, "MLflow", {"MLFLOW_ALLOW_FILE_STORE": "true"}, is_held=True),
    Tracker("comet_ml", "Comet", {"COMET_START_ONLINE": "0"}),
    Tracker("neptune", "Neptune", {"NEPTUNE_MODE": "offline"}),
    Tracker("clearml", "ClearML", {"CLEARML_OFFLINE_MODE": "1"}),
    Tracker("swanlab", "SwanLab", {"SWANLAB_MODE": "offline"}),
    Tracker("huggingface_hub", "Hugging Face Hub", {"HF_HUB_OFFLINE": "1"}),
    Tracker("aim", "Aim", {}),
)
KEPT: Final = {("WANDB_MODE", "disabled"), ("WANDB_MODE", "dryrun"), ("NEPTUNE_MODE", "debug")}


def offline(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep all trackers offline; what is off already stays so."""
    wanted = {name: value for tracker in TRACKERS for name, value in tracker.variables.items()}
    return {name: value for name, value in wanted.items() if (name, environ.get(name)) not in KEPT}


def trackers_of(script: Path) -> list[Tracker]:
    """Return the trackers that a script, or a module beside it that it imports, imports by name."""
    imported: set[str] = set()
    waiting: list[Path] = [script]
    read: set[Path] = set()
    while waiting and len(read) < MOST_FILES:
        path = waiting.pop()
        if path in read:
            continue
        read.add(path)
        for name in _imports(path):
            imported.add(name.partition(".")[0])
            place = script.parent.joinpath(*name.split("."))
            waiting += [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    return [tracker for tracker in TRACKERS if tracker.module in imported]


def _imports(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names
