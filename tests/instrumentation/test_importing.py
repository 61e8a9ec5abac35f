"""An action runs once, right after the import of the module that it waits for."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys

import pytest

from training_profiler.instrumentation.patching import after_import

NAME = "awaited_module"
IMPORTED = ["imported", "in sys.modules: True"]


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A list to which modules such as ``awaited_module`` add their import. Restores the import system."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = list(sys.meta_path)
    sys.imported = []
    (tmp_path / f"{NAME}.py").write_text("import sys\nsys.imported.append('imported')\nvalue = 7\n")
    (tmp_path / "failing_module.py").write_text("import sys\nsys.imported.append('tried')\nraise ImportError\n")
    yield sys.imported
    sys.meta_path[:] = path
    del sys.imported
    for name in (NAME, "failing_module"):
        sys.modules.pop(name, None)


@pytest.fixture
def wait(imported):
    """Wait for a module and record its import; cancelled after the test."""
    called_off = []

    def wait_for(name=NAME):
        off = after_import(name, lambda: imported.append(f"in sys.modules: {name in sys.modules}"))
        called_off.append(off)
        return off

    yield wait_for
    for off in called_off:
        off()


def test_action_runs_once_after_the_import_that_leaves_module_and_loader_as_they_were(wait, imported):
    plain = dict(vars(importlib.import_module(NAME).__spec__.loader))
    del sys.modules[NAME]
    imported.clear()
    before = list(sys.meta_path)
    wait()
    for _ in range(3):
        assert importlib.util.find_spec(NAME).name == NAME  # which imports nothing
    assert (imported, len(sys.meta_path)) == ([], len(before) + 1)
    module = importlib.import_module(NAME)
    assert (imported, module.value, sys.meta_path) == (IMPORTED, 7, before)
    assert vars(module.__spec__.loader) == plain
    assert type(module.__loader__) is importlib.machinery.SourceFileLoader
    importlib.reload(module)
    assert imported == [*IMPORTED, "imported"]


def test_first_executed_spec_runs_the_action(wait, imported):
    wait()
    specs = [importlib.util.find_spec(NAME) for _ in range(2)]
    for spec in specs:
        module = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = module
        spec.loader.exec_module(module)
    assert imported == [*IMPORTED, "imported"]


def test_cancelling_restores_the_import_system(wait, imported):
    before = list(sys.meta_path)
    off = wait()
    spec = importlib.util.find_spec(NAME)
    off()
    off()
    assert sys.meta_path == before
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    importlib.import_module(NAME)
    assert imported == ["imported", "imported"]


def test_failed_import_keeps_waiting(wait, imported):
    wait("failing_module")
    for _ in range(2):
        with pytest.raises(ImportError):
            importlib.import_module("failing_module")
    assert imported == ["tried", "tried"]


def test_missing_module_stays_missing_and_others_are_ignored(wait, imported):
    wait("module_that_is_nowhere")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("module_that_is_nowhere")
    importlib.import_module(NAME)
    assert imported == ["imported"]


class SameLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the module itself, with one loader for all specs."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == NAME else None

    def exec_module(self, module):
        sys.imported.append("imported")


def test_loader_used_twice_runs_the_action_once(wait, imported):
    finder = SameLoader()
    sys.meta_path.insert(0, finder)
    wait()
    importlib.util.find_spec(NAME)
    importlib.util.find_spec(NAME)
    importlib.import_module(NAME)
    assert (imported, vars(finder)) == (IMPORTED, {})


class OldFinder:
    """A finder without find_spec, which the import system skips too."""


class ClassLoader(importlib.abc.MetaPathFinder):
    """A loader that is a class, as for built-in modules."""

    @staticmethod
    def find_spec(name, path, target=None):
        return importlib.machinery.ModuleSpec(name, ClassLoader) if name == NAME else None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        sys.imported.append("imported")


@pytest.mark.parametrize(("finder", "seen"), [(OldFinder(), IMPORTED), (ClassLoader, ["imported"])])
def test_finders_and_loaders_of_other_kinds_are_left_alone(wait, imported, finder, seen):
    sys.meta_path.insert(0, finder)
    wait()
    before = dict(vars(ClassLoader))
    importlib.import_module(NAME)
    assert (imported, dict(vars(ClassLoader))) == (seen, before)
