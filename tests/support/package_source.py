"""The modules of the package as syntax trees, parsed once for all tests of a process."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "training_profiler"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def tree_of(name: str) -> ast.Module:
    """Return the syntax tree of the module ``name``."""
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def nodes_of(name: str) -> tuple[ast.AST, ...]:
    """Return all nodes of the module ``name``."""
    return tuple(ast.walk(tree_of(name)))


def file_of(name: str) -> str:
    """Return the file of the module ``name``, relative to the package's folder."""
    return MODULES[name].relative_to(PACKAGE).as_posix()
