"""A section name, a kind of device, a tracker and a limit of liveness are each written in one file."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from training_profiler.device.backends import BACKENDS
from training_profiler.ranks import liveness
from training_profiler.recording.known_sections import KNOWN_SECTIONS
from training_profiler.sinks.registry import TRACKERS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "training_profiler"
TABLES = {
    "sections": ("recording/known_sections.py", {section.name for section in KNOWN_SECTIONS}),
    "devices": ("device/backends.py", {backend.kind for backend in BACKENDS}),
    "trackers": ("sinks/registry.py", set(TRACKERS)),
}
# The same word with another meaning.
OTHER_MEANINGS = {
    ("diagnosis/shares.py", "logging"),  # what the training does, in a sentence for users
}


def literals(tree: ast.Module) -> list[ast.Constant]:
    """Return the string literals in ``tree`` that are not docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


@pytest.mark.parametrize("table", TABLES)
def test_names_are_literals_in_their_table_alone(table: str) -> None:
    home, names = TABLES[table]
    offenders = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file != home:
            offenders += [
                f"{file}:{literal.lineno}: {literal.value!r} is a name in {home}"
                for literal in literals(ast.parse(path.read_text(encoding="utf-8")))
                if literal.value in names and (file, literal.value) not in OTHER_MEANINGS
            ]
    assert offenders == []


def test_section_names_are_in_no_pattern_either() -> None:
    names = [section.name for section in KNOWN_SECTIONS if "_" in section.name]
    pattern = re.compile(rf"(?<![a-z_])({'|'.join(names)})(?![a-z_])")
    offenders = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file != TABLES["sections"][0]:
            offenders += [
                f"{file}:{literal.lineno}: {literal.value!r}"
                for literal in literals(ast.parse(path.read_text(encoding="utf-8")))
                if pattern.search(literal.value) and " " not in literal.value and "(" not in literal.value
            ]
    assert offenders == []


def test_every_row_is_unique() -> None:
    assert len({section.name for section in KNOWN_SECTIONS}) == len(KNOWN_SECTIONS)
    assert len({backend.kind for backend in BACKENDS}) == len(BACKENDS)


def test_every_tracker_has_its_sink_and_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {extra: " ".join(packages) for extra, packages in project["optional-dependencies"].items()}
    for name, tracker in TRACKERS.items():
        tree = ast.parse((PACKAGE / "sinks" / f"{tracker.module}.py").read_text(encoding="utf-8"))
        assert tracker.sink in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}, name
        assert (tracker.needs is None) == (tracker.package is None) == (tracker.extra is None), name
        if tracker.extra is not None:
            assert str(tracker.package) in extras[tracker.extra], name


def test_limits_of_liveness_are_defined_in_their_table_alone() -> None:
    limits = {name for name in vars(liveness) if name.isupper()}
    pattern = re.compile(r"^[A-Z_]*(SILENT|UNRESPONSIVE|OUTDATED|MESSAGES_PER_S|RANKS_A_SECOND)[A-Z_]*$")
    offenders = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            offenders += [
                f"{file}:{target.lineno}: {target.id}"
                for target in targets
                if isinstance(target, ast.Name)
                and file != "ranks/liveness.py"
                and (target.id in limits or pattern.match(target.id))
            ]
    assert offenders == []
