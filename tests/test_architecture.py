"""Holds the direction of the arrows between the stages, and the sizes that keep them readable."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "training_profiler"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
STDLIB = sys.stdlib_module_names
MOST_LINES, MOST_FUNCTION_LINES = 300, 60

# What a stage may import of ours besides itself. Order is the order of the data.
MAY_IMPORT = {
    "bootstrap": set(),
    "record": set(),
    "instrument": {"record"},
    "monitor": {"record", "units"},
    "distributed": {"rank_figures", "units"},
    "device": {"record", "statistics", "snapshot", "units"},
    "capture": {"device", "errors", "instrument", "record", "units"},
    "statistics": {"record", "monitor", "rank_figures", "snapshot", "units"},
    "diagnosis": {"rank_figures", "snapshot", "units"},
    "components": {"component_figures", "errors"},
    "trace": {"check", "errors", "units"},
    "reports": {"check", "component_figures", "rank_figures", "snapshot", "diagnosis", "trace", "units"},
    "sinks": {"snapshot", "diagnosis", "reports", "errors", "units"},
    "runs": {"record", "monitor", "rank_figures", "statistics", "snapshot", "settings", "errors", "units"},
    "cli": {
        "capture",
        "components",
        "diagnosis",
        "reports",
        "runs",
        "settings",
        "snapshot",
        "switch",
        "trace",
        "errors",
        "units",
    },
    "snapshot": {"machine_figures", "rank_figures"},
    "rank_figures": set(),
    "machine_figures": set(),
    "component_figures": set(),
    "check": set(),
    "units": set(),
    "errors": set(),
    "switch": {"errors"},
    "settings": {"capture", "diagnosis", "errors", "switch"},
}
MAY_IMPORT_ELSEWHERE = {
    "bootstrap": {"training_profiler_watch"},  # its own other file: the folder is no package, but stands on sys.path
    "record": set(),
    "instrument": set(),  # torch is handed to it: it must not be imported before the program does
    "device": {"numpy"},  # torch is looked up where the program has imported it
    "monitor": {"psutil"},
    "capture": {"psutil"},  # torch is looked up where the program has imported it
    "statistics": {"numpy"},
    "diagnosis": set(),
    "components": {"torch"},  # a command of its own, in a process of its own
    "trace": {"msgspec", "numpy"},
    "reports": {"tabulate"},
    "runs": {"numpy", "psutil"},
    "sinks": {"prometheus_client", "tensorboard"},  # when they are chosen; wandb and mlflow only the program imports
    "cli": set(),
}


def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports_of(name: str) -> set[str]:
    """Return the full names of all modules that ``name`` imports, wherever in the file it does."""
    found: set[str] = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner or {node.module}
    return found


def stage_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def ours(name: str) -> set[str]:
    return {stage_of(module) for module in imports_of(name) if module.split(".")[0] == "training_profiler"}


def functions_of(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree_of(name)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("name", [name for name in MODULES if stage_of(name) in MAY_IMPORT])
def test_a_stage_imports_only_what_comes_before_it(name: str) -> None:
    stage = stage_of(name)
    assert ours(name) - {stage} <= MAY_IMPORT[stage]


@pytest.mark.parametrize("name", MODULES)
def test_a_stage_needs_only_the_packages_named_for_it(name: str) -> None:
    foreign = {module.split(".")[0] for module in imports_of(name)} - STDLIB - {"training_profiler"}
    assert foreign <= MAY_IMPORT_ELSEWHERE.get(stage_of(name), set())


@pytest.mark.parametrize("name", [name for name in MODULES if name != "training_profiler.process"])
def test_only_the_process_imports_the_session(name: str) -> None:
    assert "session" not in ours(name)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "training_profiler"])
def test_only_the_package_itself_imports_live_or_off(name: str) -> None:
    assert not {"live", "off"} & ours(name)


def test_importing_while_off_loads_only_what_off_needs() -> None:
    assert ours("training_profiler.off") <= {"errors", "record", "switch", "snapshot"}
    assert imports_of("training_profiler.record") == set()
    assert imports_of("training_profiler.record.compiling") <= {"__future__", "sys", "collections.abc"}


@pytest.mark.parametrize("name", MODULES)
def test_only_settings_the_switch_and_the_bootstrap_read_the_environment(name: str) -> None:
    if name in ("training_profiler.settings", "training_profiler.switch") or stage_of(name) == "bootstrap":
        return
    words = {node.attr for node in ast.walk(tree_of(name)) if isinstance(node, ast.Attribute)}
    words |= {
        alias.name for node in ast.walk(tree_of(name)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert not words & {"environ", "environb", "getenv"}


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_over_300_lines(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", MODULES)
def test_no_function_is_over_60_lines(name: str) -> None:
    too_long = [
        node.name for node in functions_of(name) if (node.end_lineno or 0) - node.lineno + 1 > MOST_FUNCTION_LINES
    ]
    assert too_long == []


def test_every_stage_of_the_package_has_a_rule() -> None:
    folders = {stage_of(name) for name in MODULES if MODULES[name].parent != PACKAGE}
    assert folders <= MAY_IMPORT.keys()


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in MODULES
        if not name.startswith(
            ("training_profiler.trace", "training_profiler.reports.trace", "training_profiler.cli.trace")
        )
    ],
)
def test_only_its_own_command_and_views_import_the_analysis_of_traces(name: str) -> None:
    assert "trace" not in ours(name)
    assert not {module for module in imports_of(name) if module.startswith("training_profiler.reports.trace")}
