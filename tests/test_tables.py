"""A section name, a kind of device, a tracker and a limit of liveness are each written in one file."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.support.package_source import MODULES, file_of, nodes_of, tree_of
from training_profiler.base.backends import BACKENDS
from training_profiler.base.sections import KNOWN_SECTIONS
from training_profiler.base.trackers import TRACKERS
from training_profiler.ranks import message

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.xdist_group("package source")
TABLES = {
    "sections": ("base/sections.py", {section.name for section in KNOWN_SECTIONS}),
    "devices": ("base/backends.py", {backend.kind for backend in BACKENDS}),
    "trackers": ("base/trackers.py", set(TRACKERS)),
}
# The same word with another meaning.
OTHER_MEANINGS = {
    ("diagnosis/shares.py", "logging"),  # what the training does, in a sentence for users
}


@cache
def literals() -> list[tuple[str, int, str]]:
    """Return (file, line, text) of each string literal of the package that is not a docstring."""
    found = []
    for name in MODULES:
        nodes = nodes_of(name)
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        found += [
            (file_of(name), node.lineno, node.value)
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        ]
    return found


@pytest.mark.parametrize("table", TABLES)
def test_names_are_literals_in_their_table_alone(table: str) -> None:
    home, names = TABLES[table]
    offenders = [
        f"{file}:{line}: {text!r} is a name in {home}"
        for file, line, text in literals()
        if file != home and text in names and (file, text) not in OTHER_MEANINGS
    ]
    assert offenders == []


def test_section_names_are_in_no_pattern_either() -> None:
    names = [section.name for section in KNOWN_SECTIONS if "_" in section.name]
    pattern = re.compile(rf"(?<![a-z_])({'|'.join(names)})(?![a-z_])")
    offenders = [
        f"{file}:{line}: {text!r}"
        for file, line, text in literals()
        if file != TABLES["sections"][0] and pattern.search(text) and " " not in text and "(" not in text
    ]
    assert offenders == []


def test_every_row_is_unique() -> None:
    assert len({section.name for section in KNOWN_SECTIONS}) == len(KNOWN_SECTIONS)
    assert len({backend.kind for backend in BACKENDS}) == len(BACKENDS)


def test_every_tracker_has_its_sink_and_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {extra: " ".join(packages) for extra, packages in project["optional-dependencies"].items()}
    for name, tracker in TRACKERS.items():
        tree = tree_of(f"training_profiler.sinks.{tracker.module}")
        assert tracker.sink in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}, name
        assert (tracker.needs is None) == (tracker.package is None) == (tracker.extra is None), name
        if tracker.extra is not None:
            assert str(tracker.package) in extras[tracker.extra], name


def test_limits_of_liveness_are_defined_in_their_table_alone() -> None:
    limits = {name for name in vars(message) if name.isupper()}
    pattern = re.compile(r"^[A-Z_]*(SILENT|UNRESPONSIVE|OUTDATED|MESSAGES_PER_S|RANKS_A_SECOND)[A-Z_]*$")
    offenders = []
    for name in MODULES:
        file = file_of(name)
        for node in nodes_of(name):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            offenders += [
                f"{file}:{target.lineno}: {target.id}"
                for target in targets
                if isinstance(target, ast.Name)
                and file != "ranks/message.py"
                and (target.id in limits or pattern.match(target.id))
            ]
    assert offenders == []
