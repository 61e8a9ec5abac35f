"""Figures of the size and the structure of the project, with the limits that they may not pass.

``make house`` prints the table, and tests/test_architecture.py holds the limits: whoever makes a figure fall lowers
its limit with the same commit. A limit rises for a reason that the commit gives. Lines can be saved by making them
longer, so statements are counted too.
"""

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from subprocess import check_output

from tabulate import tabulate

from tests.support.package_source import MODULES, PACKAGE, tree_of

ROOT = PACKAGE.parent
# What each figure is to come to, and what it may be today. On a busy machine the end of a run goes through more files.
# The mean of imports a module rose as small modules became parts of larger ones; all together fell by a quarter.
BUDGETS_AND_LIMITS: dict[str, tuple[float, float]] = {
    "lines of the package": (48_000, 73_085),
    "statements of the package": (28_000, 44_048),
    "files of the package": (340, 312),
    "lines in C": (1_500, 1_500),
    "lines of tests": (45_000, 71_910),
    "folders": (29, 28),
    "arrows between folders": (150, 145),
    "folders that import each other": (0, 0),
    "depth of imports": (20, 20),
    "imports a module": (4.0, 5.5),
    "imports of one module, at most": (25, 25),
    "modules that one other imports": (80, 70),
    "files that name a rule, median": (2, 1),
    "files that name a rule, at most": (4, 4),
    "words of the guide": (26_000, 26_000),
    "words of the changelog": (2_500, 2_500),
    "files that the end of a run goes through": (120, 122),
    "files that a report goes through": (120, 80),
}


def figures() -> dict[str, float]:
    """Return each figure of ``BUDGETS_AND_LIMITS``."""
    imports = {name: imports_of(name) for name in MODULES}
    importers = {name: [one for one, targets in imports.items() if name in targets] for name in MODULES}
    folder = {name: path.parent for name, path in MODULES.items()}
    arrows = arrows_between(folder, imports)
    rules = files_by_rule()
    end, report = map(int, check_output([sys.executable, "-m", "tests.support.run_through"], cwd=ROOT).split())
    return {
        "lines of the package": lines_of(MODULES.values()),
        "statements of the package": sum(statements_of(tree_of(name)) for name in MODULES),
        "files of the package": len(MODULES),
        "lines in C": lines_of(ROOT.glob("native/**/*.[ch]")),
        "lines of tests": lines_of(ROOT.glob("tests/**/*.py")),
        "folders": len(set(folder.values())),
        "arrows between folders": len(arrows),
        "folders that import each other": sum((b, a) in arrows for a, b in arrows) // 2,
        "depth of imports": depth_of(imports),
        "imports a module": round(statistics.mean(map(len, imports.values())), 2),
        "imports of one module, at most": max(map(len, imports.values())),
        "modules that one other imports": sum(
            len(importers[name]) == 1 for name, path in MODULES.items() if path.name != "__init__.py"
        ),
        "files that name a rule, median": statistics.median(map(len, rules.values())),
        "files that name a rule, at most": max(map(len, rules.values())),
        "words of the guide": words_of("README.md", "PROFILING.md", "docs/**/*.md")
        - words_of("docs/reference/**/*.md"),
        "words of the changelog": words_of("CHANGELOG.md"),
        "files that the end of a run goes through": end,
        "files that a report goes through": report,
    }


def lines_of(paths: Iterator[Path]) -> int:
    """Return how many lines the files have."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def words_of(*patterns: str) -> int:
    """Return how many words the files have whose paths match."""
    return sum(len(path.read_text(encoding="utf-8").split()) for pattern in patterns for path in ROOT.glob(pattern))


def statements_of(tree: ast.Module) -> int:
    """Return how many statements there are, docstrings left out."""
    return sum(
        isinstance(node, ast.stmt)
        and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        for node in ast.walk(tree)
    )


@cache
def imports_of(name: str) -> frozenset[str]:
    """Return the modules of the package that ``name`` imports when it runs, anywhere in its code."""
    found: set[str] = set()
    for node in nodes_that_run(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one if one in MODULES else node.module for one in inner}
    return frozenset(found & MODULES.keys() - {name})


def nodes_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Return all nodes but those under ``if TYPE_CHECKING``."""
    yield node
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in node.orelse if is_for_types else ast.iter_child_nodes(node):
        yield from nodes_that_run(child)


def arrows_between(folder: dict[str, Path], imports: dict[str, frozenset[str]]) -> set[tuple[Path, Path]]:
    """Return the pairs of folders of which the first one imports the second."""
    pairs = {(folder[name], folder[target]) for name, targets in imports.items() for target in targets}
    return {(a, b) for a, b in pairs if a != b}


def depth_of(imports: dict[str, frozenset[str]]) -> int:
    """Return the length of the longest chain of modules; one that leads back to itself ends there."""
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            depths[name] = 0
            depths[name] = 1 + max(map(depth, sorted(imports[name])), default=0)
        return depths[name]

    return max(map(depth, imports))


def files_by_rule() -> dict[str, set[str]]:
    """Return the modules that name each rule, by its code or by a constant that stands for it."""
    constants: dict[str, set[str]] = defaultdict(set)
    for node in (node for name in MODULES for node in tree_of(name).body):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and (code := string(node.value)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                constants[ast.unparse(target)].add(code)
    named = {name: strings_and_names(tree_of(name), constants) for name in MODULES}
    codes = {code for name in MODULES for code in codes_defined(tree_of(name), constants)}
    return {code: {name for name, words in named.items() if code in words} for code in sorted(codes)}


def string(node: ast.AST | None) -> str:
    """Return the text that ``node`` is, or ""."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def codes_defined(tree: ast.Module, constants: dict[str, set[str]]) -> Iterator[str]:
    """Return the codes of rules: what a call that is named after a rule or a share is given first, or as ``code``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.search(r"(rule|Rule|Share)$", ast.unparse(node.func)):
            for value in [*node.args[:1], *(one.value for one in node.keywords if one.arg == "code")]:
                for code in constants.get(ast.unparse(value), {string(value)}):
                    if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", code):
                        yield code


def strings_and_names(tree: ast.Module, constants: dict[str, set[str]]) -> set[str]:
    """Return the texts that a module holds, with those of the constants that it uses and that stand for one text."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and len(values := constants.get(node.id, set())) == 1:
            found |= values
        else:
            found.add(string(node))
    return found


def main() -> int:
    """Print the table; return 1 if a figure is above its limit."""
    now = figures()
    rows = [(name, now[name], limit, budget) for name, (budget, limit) in BUDGETS_AND_LIMITS.items()]
    print(tabulate(rows, ("figure", "now", "limit", "budget"), intfmt=",", floatfmt=",g"))
    return int(any(now > limit for _, now, limit, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
