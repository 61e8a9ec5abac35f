"""The order of the folders is the order of the data: imports run one way, and files stay small enough to read."""

import ast
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter

import pytest

from tests.support.house import BUDGETS_AND_LIMITS, figures
from tests.support.package_source import MODULES, PACKAGE, nodes_of, tree_of

pytestmark = pytest.mark.xdist_group("package source")

# The order of the data, printed in CONTRIBUTING.md: each stage, and the stages above it that it imports. A new arrow is
# a line to be reviewed here, and one that nothing uses any more goes.
ARROWS = {
    "bootstrap": "",
    "base": "",
    "model": "base",
    "statistics": "base model",
    "recording": "base model",
    "safety": "base recording",
    "instrumentation": "bootstrap base model recording",
    "inspections": "base model recording safety instrumentation",
    "sampling": "base model recording safety instrumentation",
    "device": "base model recording safety",
    "torch_capture": "base model recording safety instrumentation",
    "aggregation": "base model statistics recording sampling device",
    "diagnosis": "base model",
    "settings": "base torch_capture diagnosis",
    "reports": "base model statistics diagnosis",
    "sinks": "base model recording safety diagnosis settings reports",
    "ranks": "base model statistics recording safety instrumentation aggregation settings",
    "storage": ("base model statistics recording safety sampling torch_capture aggregation diagnosis settings ranks"),
    "runtime": (
        "bootstrap base model recording safety instrumentation inspections sampling device torch_capture "
        "aggregation diagnosis settings reports sinks ranks storage"
    ),
    "api_disabled": "base model recording",
    "api": "base model recording safety sampling settings sinks runtime",
    "integrations": "base recording safety instrumentation sinks api",
    "trace_analysis": "base safety diagnosis reports",
    "component_benchmark": "base",
    "trials": "base model statistics recording safety instrumentation sampling diagnosis reports storage runtime",
    "cli": (
        "base model statistics safety sampling torch_capture diagnosis settings reports sinks ranks storage "
        "runtime trace_analysis component_benchmark trials"
    ),
}
STAGES = tuple(ARROWS)
TOOLS = {"trace_analysis", "component_benchmark", "trials"}  # commands of their own: no training imports them
PACKAGES_OF_OTHERS = {
    "bootstrap": {"training_profiler_hook"},  # its other file: this folder is on sys.path, not a package
    "model": {"msgspec"},
    "safety": {"numpy"},  # so that its threads take no signals
    "statistics": {"numpy"},
    "sampling": {"msgspec", "psutil"},
    "torch_capture": {"msgspec", "psutil"},  # torch is looked up where the program has imported it
    "device": {"numpy"},  # the same
    "aggregation": {"msgspec", "numpy"},
    "base": {"tabulate"},
    "reports": {"tabulate", "termcolor"},
    "sinks": {"prometheus_client", "tensorboard"},  # once they are chosen; wandb and mlflow only the program imports
    "ranks": {"msgspec", "numpy"},
    "storage": {"msgspec", "numpy", "psutil"},
    "trace_analysis": {"msgspec", "numpy"},
    "component_benchmark": {"torch"},
    # libcst once an edit is asked for. The modules of the start-up folder import each other by name: that folder is on
    # sys.path, not a package.
    "trials": {"libcst", "msgspec", "numpy", "psutil", "torch"}
    | {f"training_profiler_{name}" for name in ("hook", "trial")},
    "integrations": {"ignite", "keras", "lightning", "pytorch_lightning", "transformers"},  # one a module
    "cli": {"mcp", "mcp_types", "pytest", "resvg_py", "rich"},  # assistants, a plugin, cards, a view of the terminal
}
# Objects whose attributes a module assigns although they are not its own: (module or stage, object) pairs.
MAY_BE_ASSIGNED = {
    # Records of the hot path, where a method call would cost more than what it does: thread buffers, pending calls,
    # passes over loaders, and the state that every patch reads first.
    ("instrumentation", "training_thread"),
    ("inspections.flop_counter", "self.counts"),
    ("instrumentation.loop_detection", "call"),
    ("instrumentation.loop_detection", "latest"),
    ("instrumentation.loop_detection", "loader_pass"),
    ("instrumentation.loop_detection", "pending"),
    ("instrumentation.loop_detection", "run"),
    ("instrumentation.loop_detection", "unknown"),
    ("instrumentation.loop_detection", "use"),
    ("instrumentation.loop_detection.loop_detector", "self.phases"),
    ("instrumentation.loop_detection.loop_detector", "self.update"),
    ("instrumentation.loop_detection.pending_events", "self.buffer"),
    ("instrumentation.loop_detection.pending_events", "self._recorder"),
    ("recording", "buffer"),
    # Sums and counts are records: to give each field a method would only repeat its name.
    ("aggregation", "self.interval"),
    ("aggregation", "self.intervals"),
    ("aggregation", "self.totals"),
    ("aggregation", "self.totals.sections"),
    ("aggregation", "totals"),
    ("api", "counts"),
    ("component_benchmark.subject", "call"),
    ("component_benchmark.subject", "node"),
    ("runtime.pipeline", "totals"),
    ("storage", "totals.coupling"),
    # Objects of Python, ctypes, torch and protobuf.
    ("cli.run", "parser"),
    ("cli.bisect", "parser"),
    ("cli.try_command", "parser"),
    ("component_benchmark", "leaf"),
    ("component_benchmark", "parameter"),
    ("runtime.shutdown", "libc.signal"),
    ("sinks.tensorboard_events", "value.metadata.plugin_data"),
    ("sinks.tensorboard_events", "value.tensor"),
}
# Records with nearly the same fields: what a file or a message has, with bounds of what is read, and what it becomes.
ALIKE = {
    ("EndLine", "Health"),  # a line of the journal has no count of dropped events
    ("Message", "ReceivedMessage"),  # its sequence becomes its age
    ("WorkerLine", "WorkerLineStats"),  # samples of a worker, shares of all of them
}
MAY_READ_THE_ENVIRONMENT = {"settings", "base", "bootstrap", "trials"}  # a trial's process gets one of its own
WRITES_TO_THE_USER = (
    r"print|warnings\.warn\w*|(sys\.__?)?(sys\.)?std(out|err)(__)?\.write|traceback\.print_\w+"
    r"|(\w+\.)*(log|logger|logging)\.(debug|info|warn|warning|error|exception|critical|log)"
)
MAX_ROOT_MODULES, MAX_LINES, MAX_FUNCTION_LINES, MAX_SAME_BASENAME = 9, 500, 60, 4


@cache
def imports_of(name: str) -> frozenset[str]:
    """Return the full names of all modules that ``name`` imports, anywhere in the file."""
    imported: set[str] = set()
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            imported |= inner or {node.module}
    return frozenset(imported)


def stage_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def ours(name: str) -> set[str]:
    return {stage_of(module) for module in imports_of(name) if module.split(".")[0] == "training_profiler"}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name in MODULES:
        for node in nodes_of(name):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield name, node


def test_every_module_belongs_to_a_stage() -> None:
    assert {stage_of(name) for name in MODULES} - {"", "__main__"} == set(STAGES)


def test_contributing_lists_the_stages_in_their_order() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    chapter = text[text.index("## The stages") : text.index("### One table per fact")]
    assert tuple(re.findall(r"^\| `(\w+)` \|", chapter, re.M)) == STAGES


def test_a_stage_imports_the_stages_that_it_is_to_import_and_these_stand_above_it() -> None:
    used = {stage: {other for name in MODULES if stage_of(name) == stage for other in ours(name)} for stage in STAGES}
    assert {stage: others - {stage} for stage, others in used.items()} == {
        stage: set(others.split()) for stage, others in ARROWS.items()
    }
    for i, stage in enumerate(STAGES):
        assert set(ARROWS[stage].split()) <= set(STAGES[:i])


def test_only_commands_import_the_tools() -> None:
    assert {stage for stage, others in ARROWS.items() if TOOLS & set(others.split())} == {"cli"}


def test_a_stage_needs_only_the_packages_named_for_it() -> None:
    offenders = []
    for name in MODULES:
        others = {module.split(".")[0] for module in imports_of(name)} - sys.stdlib_module_names - {"training_profiler"}
        offenders += [f"{name}: {one}" for one in sorted(others - PACKAGES_OF_OTHERS.get(stage_of(name), set()))]
    assert offenders == []


def test_only_the_process_imports_the_session_and_only_the_package_the_api() -> None:
    sessions = [
        name
        for name in MODULES
        if "training_profiler.runtime.session" in imports_of(name) and stage_of(name) != "runtime"
    ]
    apis = [name for name in MODULES if {"api", "api_disabled"} & ours(name)]
    assert sessions == []
    assert apis == ["training_profiler", "training_profiler.integrations.trainer_run"]


def test_an_integration_imports_no_framework_but_its_own() -> None:
    frameworks = {name: imports_of(name) for name in MODULES if stage_of(name) == "integrations"}
    of_others = PACKAGES_OF_OTHERS["integrations"]
    needed = {name: {module.split(".")[0] for module in modules} & of_others for name, modules in frameworks.items()}
    assert {name.rpartition(".")[2]: packages for name, packages in needed.items() if packages} == {
        "hugging_face": {"transformers"},
        "ignite": {"ignite"},
        "keras": {"keras"},
        "lightning": {"lightning", "pytorch_lightning"},
    }


def test_importing_while_off_loads_only_what_off_needs() -> None:
    assert ours("training_profiler.api_disabled") <= {"base", "model", "recording"}
    assert imports_of("training_profiler.recording") == set()
    assert imports_of("training_profiler.recording.context_type") <= {"__future__", "sys", "collections.abc", "typing"}


def test_only_settings_the_switch_the_bootstrap_and_trials_read_the_environment() -> None:
    offenders = []
    for name in MODULES:
        words = {node.attr for node in nodes_of(name) if isinstance(node, ast.Attribute)}
        words |= {alias.name for node in nodes_of(name) if isinstance(node, ast.ImportFrom) for alias in node.names}
        if words & {"environ", "environb", "getenv"} and stage_of(name) not in MAY_READ_THE_ENVIRONMENT:
            offenders.append(name)
    assert offenders == []


# They begin what they write with our name. Commands of ours are not in a training.
MAY_WRITE_TO_THE_USER = {
    "training_profiler.safety.fault_guard": {"log.warning"},
    "training_profiler.api": {"print", "warnings.warn_explicit"},  # a ProfilerWarning, as Python prints it
    "training_profiler.api_disabled": {"warnings.warn"},
}


def test_what_a_training_shows_its_user_goes_through_few_places() -> None:
    said = {}
    for name in MODULES:
        if stage_of(name) not in {"cli", "trials", "bootstrap", "__main__"}:
            called = {ast.unparse(node.func) for node in nodes_of(name) if isinstance(node, ast.Call)}
            if found := {call for call in called if re.fullmatch(WRITES_TO_THE_USER, call)}:
                said[name] = found
    assert said == MAY_WRITE_TO_THE_USER


def test_a_class_name_stands_for_one_class() -> None:
    names = Counter(node.name for name in MODULES for node in nodes_of(name) if isinstance(node, ast.ClassDef))
    # What is there while profiling is on and while it is off, and a callback for each framework.
    assert {name for name, count in names.items() if count > 1} == {"Context", "Section", "TrainingProfilerCallback"}


def test_no_two_records_have_four_fifths_of_their_fields_in_common() -> None:
    records = dict(record for name in MODULES for record in records_of(name))
    alike = {
        (one, other)
        for one, other in itertools.combinations(sorted(records), 2)
        if len(records[one] & records[other]) >= 0.8 * max(len(records[one]), len(records[other]))
    }
    assert alike == ALIKE


def records_of(name: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the name and the fields of each record of a module that has four or more."""
    for node in nodes_of(name):
        if isinstance(node, ast.ClassDef):
            fields = {
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            }
            if len(fields) >= 4:
                yield node.name, fields


def test_no_object_assigns_an_attribute_of_another() -> None:
    offenders, used = [], set()
    for name in MODULES:
        module = name.removeprefix("training_profiler.")
        for line, owner in assigned_objects(tree_of(name)):
            matches = {
                (part, what) for part, what in MAY_BE_ASSIGNED if what == owner and f"{module}.".startswith(f"{part}.")
            }
            used |= matches
            if not matches:
                offenders.append(f"{name}:{line}: an attribute of {owner}")
    assert offenders == []
    assert MAY_BE_ASSIGNED - used == set()


def assigned_objects(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return (line, object) of each assignment to an attribute of an object other than ``self``.

    A local object that the same function has just constructed is not another one. Names such as ``__name__`` and
    ``tb_next`` belong to Python's functions, classes and tracebacks.
    """
    constructed = {
        id(target): names
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for names in [constructed_in(function)]
        for target in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            if node.attr == "tb_next" or node.attr.startswith("__"):
                continue
            owner = ast.unparse(node.value)
            if owner not in {"self", "cls"} | constructed.get(id(node), set()):
                yield node.lineno, owner


def constructed_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the local names that are bound to the result of calling a class."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).rpartition(".")[2][:1].isupper()
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_files_and_functions_stay_readable() -> None:
    long = [
        f"{name}: {count} lines"
        for name, path in MODULES.items()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    ]
    long += [
        f"{name}.{node.name}: {count} lines"
        for name, node in functions()
        if (count := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_figure_of_the_house_is_above_its_limit() -> None:
    now = figures()
    above = {name: now[name] for name, (_, limit) in BUDGETS_AND_LIMITS.items() if now[name] > limit}
    assert above == {}, "make house prints them all"


def test_the_root_holds_few_modules_and_no_basename_is_common() -> None:
    root = sorted(path.stem for path in PACKAGE.glob("*.py"))
    basenames = Counter(path.name for path in MODULES.values() if path.name != "__init__.py")
    assert len(root) <= MAX_ROOT_MODULES, root
    assert {name: count for name, count in basenames.items() if count > MAX_SAME_BASENAME} == {}


def test_no_import_cycle_even_for_types() -> None:
    needs = {name: top_level_imports(name) & MODULES.keys() for name in MODULES}
    assert set(TopologicalSorter(needs).static_order()) == MODULES.keys()  # a CycleError names the modules


def top_level_imports(name: str) -> set[str]:
    """Return the modules that ``name`` imports when it is loaded, or under ``if TYPE_CHECKING``."""
    imported = set()
    body = tree_of(name).body
    guarded = [statement for node in body if isinstance(node, ast.If) for statement in node.body]
    for node in [*body, *guarded]:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            imported |= inner or {node.module}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return imported - {name}
