import types

import pytest

from training_profiler.instrumentation.patching import Patches


class Base:
    def inherited(self):
        return "base"


class Owner(Base):
    def own(self):
        return "own"

    @staticmethod
    def static():
        return "static"


def named(name):
    """Return a wrapper of functions that adds ``name`` first."""
    return lambda original: lambda *args: f"{name}+{original(*args)}"


@pytest.fixture
def owner():
    """A class that is restored after the test."""
    return type("Owner", (Base,), dict(vars(Owner)))


@pytest.fixture
def module():
    module = types.ModuleType("module")
    module.save = lambda: "save"
    return module


def test_undo_restores_the_owner(owner, module):
    before = dict(vars(owner)), dict(vars(module))
    patches = Patches()
    for name in ("own", "static", "inherited", "own"):
        patches.replace(owner, name, named("ours"))
    patches.replace(module, "save", named("ours"))
    assert (owner().own(), owner().inherited(), module.save()) == ("ours+ours+own", "ours+base", "ours+save")
    patches.undo()
    assert (dict(vars(owner)), dict(vars(module))) == before


def test_what_others_have_replaced_or_deleted_since_is_theirs(owner):
    patches = Patches()
    assert patches.are_in_place()
    for name in ("own", "static", "inherited"):
        patches.replace(owner, name, named("ours"))
    assert patches.are_in_place()
    owner.own = theirs = lambda self: "theirs"
    assert not patches.are_in_place()
    del owner.static
    patches.undo()
    assert vars(owner)["own"] is theirs
    assert not {"static", "inherited"} & vars(owner).keys()


def test_missing_attribute_raises_and_replaces_nothing(owner):
    before = dict(vars(owner))
    patches = Patches()
    with pytest.raises(AttributeError, match="missing"):
        patches.replace(owner, "missing", named("ours"))
    patches.undo()
    assert dict(vars(owner)) == before


def test_repeated_patch_is_the_same_function(module):
    package, other = types.ModuleType("package"), types.ModuleType("other")
    package.save = original = module.save
    patches = Patches()
    patches.replace(module, "save", named("ours"))
    for alias in (package, other):
        patches.repeat(module, alias, "save")
    assert package.save is module.save
    assert package.save() == "ours+save"
    assert not hasattr(other, "save")
    patches.undo()
    assert package.save is module.save is original


def test_kept_undo_functions_run_once_last_first():
    undone = []
    patches = Patches()
    patches.keep(lambda: undone.append("first"))
    patches.keep(lambda: undone.append("second"))
    patches.undo()
    patches.undo()
    assert undone == ["second", "first"]
