"""The functions named in the tables of library frames exist in the installed libraries."""

import ast
import importlib.util
from pathlib import Path

import pytest

from training_profiler.base.framework_frames import ANY, FRAMES
from training_profiler.integrations.trainer_run import OWN_CALLBACKS

pytestmark = pytest.mark.integrations
# Names of earlier or later versions than the installed ones.
OF_OTHER_VERSIONS = {"_inner_training_loop", "prediction_loop", "_rotate_checkpoints", "_dump_logs"}
LIBRARIES = (
    "transformers",
    "lightning",
    "skorch",
    "stable_baselines3",
    "keras",
    "ignite",
    "accelerate",
    "fastai",
    "ultralytics",
)


def folder_of(library: str) -> Path:
    spec = importlib.util.find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{library} is not installed")
    return Path(spec.submodule_search_locations[0])


@pytest.mark.parametrize("library", LIBRARIES)
def test_functions_of_the_table_exist(library: str) -> None:
    folder, missing = folder_of(library), []
    for row in FRAMES + OWN_CALLBACKS:
        path = row.path.strip("/")
        if path.split("/")[0] != library:
            continue
        place = folder.parent / path
        files = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
        names = {
            node.name
            for file in files
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        for function in set(row.functions) - {ANY} - OF_OTHER_VERSIONS:
            name = function.split(".")[0]
            is_there = any(known.startswith(name[:-1]) for known in names) if name.endswith("*") else name in names
            missing += [] if is_there and files else [f"{row.path}: {function}"]
        assert files, row.path
    assert missing == []
