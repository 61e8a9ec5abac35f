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

    def make(original):
        return lambda *args: f"{name}+{original(*args)}"

    return make


@pytest.fixture
def owner():
    """A class that is restored after the test."""
    return type("Owner", (Base,), dict(vars(Owner)))


@pytest.fixture
def module():
    module = types.ModuleType("module")
    module.save = lambda: "save"
    return module


def test_attribute_is_replaced(owner):
    Patches().replace(owner, "own", named("ours"))
    assert owner().own() == "ours+own"


def test_undo_restores_the_owner(owner, module):
    before = dict(vars(owner)), dict(vars(module))
    patches = Patches()
    for name in ("own", "static"):
        patches.replace(owner, name, named("ours"))
    patches.replace(module, "save", named("ours"))
    patches.undo()
    assert (dict(vars(owner)), dict(vars(module))) == before
    assert isinstance(vars(owner)["static"], staticmethod)


def test_undo_deletes_an_inherited_attribute(owner):
    patches = Patches()
    patches.replace(owner, "inherited", named("ours"))
    assert owner().inherited() == "ours+base"
    patches.undo()
    assert "inherited" not in vars(owner)
    assert owner().inherited() == "base"


def test_attribute_replaced_twice_is_restored(owner):
    before = vars(owner)["own"]
    patches = Patches()
    patches.replace(owner, "own", named("first"))
    patches.replace(owner, "own", named("second"))
    assert owner().own() == "second+first+own"
    patches.undo()
    assert vars(owner)["own"] is before


def test_attribute_replaced_by_others_is_kept(owner):
    patches = Patches()
    patches.replace(owner, "own", named("ours"))
    patches.replace(owner, "inherited", named("ours"))
    owner.own = theirs = lambda self: "theirs"
    patches.undo()
    assert vars(owner)["own"] is theirs
    assert "inherited" not in vars(owner)


def test_attribute_deleted_by_others_stays_deleted(owner):
    patches = Patches()
    patches.replace(owner, "own", named("ours"))
    del owner.own
    patches.undo()
    assert "own" not in vars(owner)


def test_patches_are_in_place_until_one_is_replaced(owner):
    patches = Patches()
    assert patches.are_in_place()
    patches.replace(owner, "own", named("ours"))
    assert patches.are_in_place()
    owner.own = lambda self: "theirs"
    assert not patches.are_in_place()


def test_missing_attribute_raises_and_replaces_nothing(owner):
    before = dict(vars(owner))
    patches = Patches()
    with pytest.raises(AttributeError, match="missing"):
        patches.replace(owner, "missing", named("ours"))
    patches.undo()
    assert dict(vars(owner)) == before


def test_repeated_patch_is_the_same_function(module):
    package = types.ModuleType("package")
    package.save = original = module.save
    patches = Patches()
    patches.replace(module, "save", named("ours"))
    patches.repeat(module, package, "save")
    assert package.save is module.save
    assert package.save() == "ours+save"
    patches.undo()
    assert package.save is module.save is original


def test_missing_alias_is_skipped(module):
    package = types.ModuleType("package")
    Patches().repeat(module, package, "save")
    assert not hasattr(package, "save")


def test_kept_undo_functions_run_once_last_first():
    undone = []
    patches = Patches()
    patches.keep(lambda: undone.append("first"))
    patches.keep(lambda: undone.append("second"))
    patches.undo()
    patches.undo()
    assert undone == ["second", "first"]
