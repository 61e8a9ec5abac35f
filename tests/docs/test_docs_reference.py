"""The reference pages and the code name the same settings, metrics, rules and commands."""

import dataclasses
import importlib.util
import inspect
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from training_profiler.cli import COMMANDS
from training_profiler.model.program import ProgramFacts
from training_profiler.model.snapshot import Snapshot
from training_profiler.reports.report_json import as_data
from training_profiler.settings import settings
from training_profiler.sinks import metrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [ROOT / "README.md", ROOT / "PROFILING.md", *sorted(DOCS.rglob("*.md"))]
# The first two are read when the profiler is imported, and are no settings of a run.
SWITCH, NATIVE, *VARIABLES = settings.variables()
SETTINGS = [row.argument for row in settings.describe()]
LEAST_METRICS = 30
NAMES = ("{name}", "data_generation", "data_transfer", "other")  # of sections


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_every_setting_has_a_paragraph_and_no_other_has():
    headings = re.findall(r"^### (\w+)\n\n`(\w+)`\.", page("settings.md"), re.M)
    assert sorted(headings) == sorted(zip(SETTINGS, VARIABLES, strict=True))


def test_variables_that_are_no_settings_of_a_run_are_on_the_page_of_settings():
    assert [name for name in (SWITCH, NATIVE) if f"`{name}" not in page("settings.md")] == []


def test_defaults_of_settings_equal_the_code():
    documented = dict(re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| `([^`]*)` \|", page("settings.md"), re.M))
    plain = {
        field.name: getattr(settings.Settings(), field.name)
        for field in dataclasses.fields(settings.Settings)
        if field.name in SETTINGS
    }
    wrong = {
        name: (documented.get(name), value)
        for name, value in plain.items()
        if isinstance(value, bool | int | float | str) and documented.get(name) != as_typed(value)
    }
    assert wrong == {}


def as_typed(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_variable_on_any_page_exists():
    named = {name for path in PAGES for name in re.findall(rf"\b{SWITCH}_[A-Z_]*[A-Z]", path.read_text("utf-8"))}
    assert named - {NATIVE, *VARIABLES} == set()


def test_every_metric_is_documented_and_every_documented_metric_exists():
    documented = set(re.findall(r"^\| `(profil\w+/[^`]+)` \|", page("metrics.md"), re.M))
    sent = {pattern(name, documented) for name in every_metric()}
    assert len(documented) > LEAST_METRICS
    assert sent - documented == set()
    assert documented - sent == set()


def pattern(name: str, documented: set[str]) -> str:
    """Return the documented name of a metric: a section's own name stands for ``{name}``, a number for ``{n}``."""
    name = re.sub(r"(?<=gpu_)\d+", "{n}", name).replace("/dl_name/", "/dl_{name}/")
    if name in documented:
        return name
    return re.sub(r"(timing_|interval_|epoch_)\w+(_avg|_percentage)$", r"\1{name}\2", name)


def every_metric() -> set[str]:
    """Return the names that the functions of ``sinks.metrics`` give for figures of which none is unknown."""
    names: set[str] = set()
    for function in vars(metrics).values():
        if (
            not inspect.isfunction(function)
            or function.__name__.startswith("_")
            or function.__module__ != metrics.__name__
        ):
            continue
        hints = typing.get_type_hints(function)
        hints.pop("return")
        for phase in ("train", "val"):
            names |= set(function(*(filled(hint, "{name}", phase) for hint in hints.values())))
    run = filled(Snapshot, "{name}", "train")
    under_way = dataclasses.replace(run, ended_by=None, first_step=0, program=ProgramFacts(expected_steps=9), steps=8)
    return names | set(metrics.interval_metrics(under_way))


def filled(hint: Any, name: str, phase: str) -> Any:
    """Return a value of type ``hint`` in which nothing is unknown: 2, 0.5, True, and ``name`` for a name."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return filled(next(one for one in arguments if one is not type(None)), name, phase)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        values = {field.name: filled(hints[field.name], name, phase) for field in dataclasses.fields(hint)}
        return hint(**(values | ({"phase": phase} if "phase" in values else {})))
    if origin in (dict, Mapping):
        return {key: filled(arguments[1], key, phase) for key in NAMES} if arguments[0] is str else {}
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(filled(one, name, phase) for one in arguments)
    if origin in (tuple, list, Iterable) or (inspect.isclass(origin) and issubclass(origin, Iterable)):
        return (filled(arguments[0], name, phase),)
    if hasattr(hint, "_fields"):  # a named tuple
        return hint(*(filled(of_field, name, phase) for of_field in typing.get_type_hints(hint).values()))
    plain = {str: name, bool: True, int: 2, float: 0.5}
    return plain.get(hint)


def test_every_key_of_the_report_is_documented():
    snapshot = filled(typing.get_type_hints(as_data)["snapshot"], "{name}", "train")
    text = page("json.md") + page("figures.md")
    undocumented = {
        key for key in keys(as_data(snapshot, ())) if not re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text)
    }
    assert undocumented == set()


def keys(data: Any) -> set[str]:
    """Return all keys in ``data``, without names of sections."""
    if isinstance(data, Mapping):
        own = {key for key in data if key not in NAMES}
        return own.union(*(keys(value) for value in data.values()))
    return set().union(*(keys(one) for one in data)) if isinstance(data, list | tuple) else set()


def test_generated_pages_match_the_code():
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    for path, text in generator.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python docs/reference.py"


def test_every_command_on_any_page_exists():
    named = {name for path in PAGES for name in re.findall(r"training-profiler ([a-z]+)\b", path.read_text("utf-8"))}
    assert named - set(COMMANDS) == set()
    assert set(COMMANDS) - named == set()


def test_every_benchmark_and_make_target_on_any_page_exists():
    text = "\n".join(path.read_text("utf-8") for path in PAGES)
    benchmarks = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert set(re.findall(r"-m benchmarks\.(\w+)", text)) - benchmarks == set()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = set(re.findall(r"(?:`|^ {4}|```bash\n)make ([\w-]+)", text, re.M))
    assert named - targets == set()
    assert {"profile", "test"} <= named
