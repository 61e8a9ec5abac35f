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
    """Return what makes a function into another that says ``name`` first."""

    def make(original):
        return lambda *args: f"{name}+{original(*args)}"

    return make


@pytest.fixture
def owner():
    """A class of its own, as it was before the test when the test is over."""
    return type("Owner", (Base,), dict(vars(Owner)))


@pytest.fixture
def module():
    module = types.ModuleType("module")
    module.save = lambda: "save"
    return module


def test_a_name_is_replaced_by_what_is_made_of_it(owner):
    Patches().replace(owner, "own", named("ours"))
    assert owner().own() == "ours+own"


def test_undoing_leaves_the_owner_as_it_was(owner, module):
    before = dict(vars(owner)), dict(vars(module))
    patches = Patches()
    for name in ("own", "static"):
        patches.replace(owner, name, named("ours"))
    patches.replace(module, "save", named("ours"))
    patches.undo()
    assert (dict(vars(owner)), dict(vars(module))) == before
    assert isinstance(vars(owner)["static"], staticmethod)


def test_undoing_an_inherited_name_leaves_the_owner_without_one(owner):
    patches = Patches()
    patches.replace(owner, "inherited", named("ours"))
    assert owner().inherited() == "ours+base"
    patches.undo()
    assert "inherited" not in vars(owner)
    assert owner().inherited() == "base"


def test_a_name_replaced_twice_is_what_it_was_when_undone(owner):
    before = vars(owner)["own"]
    patches = Patches()
    patches.replace(owner, "own", named("first"))
    patches.replace(owner, "own", named("second"))
    assert owner().own() == "second+first+own"
    patches.undo()
    assert vars(owner)["own"] is before


def test_what_somebody_else_has_replaced_since_stays_theirs(owner):
    patches = Patches()
    patches.replace(owner, "own", named("ours"))
    patches.replace(owner, "inherited", named("ours"))
    owner.own = theirs = lambda self: "theirs"
    patches.undo()
    assert vars(owner)["own"] is theirs
    assert "inherited" not in vars(owner)


def test_what_somebody_else_has_deleted_since_stays_deleted(owner):
    patches = Patches()
    patches.replace(owner, "own", named("ours"))
    del owner.own
    patches.undo()
    assert "own" not in vars(owner)


def test_all_are_in_place_until_somebody_replaces_one(owner):
    patches = Patches()
    assert patches.are_in_place()
    patches.replace(owner, "own", named("ours"))
    assert patches.are_in_place()
    owner.own = lambda self: "theirs"
    assert not patches.are_in_place()


def test_a_name_that_is_not_there_is_an_error_and_nothing_is_replaced(owner):
    before = dict(vars(owner))
    patches = Patches()
    with pytest.raises(AttributeError, match="missing"):
        patches.replace(owner, "missing", named("ours"))
    patches.undo()
    assert dict(vars(owner)) == before


def test_a_function_is_the_same_under_its_other_path(module):
    package = types.ModuleType("package")
    package.save = original = module.save
    patches = Patches()
    patches.replace(module, "save", named("ours"))
    patches.repeat(module, package, "save")
    assert package.save is module.save
    assert package.save() == "ours+save"
    patches.undo()
    assert package.save is module.save is original


def test_a_path_that_is_not_there_is_passed_over(module):
    package = types.ModuleType("package")
    Patches().repeat(module, package, "save")
    assert not hasattr(package, "save")


def test_what_was_done_elsewhere_is_undone_once_the_last_first():
    undone = []
    patches = Patches()
    patches.keep(lambda: undone.append("first"))
    patches.keep(lambda: undone.append("second"))
    patches.undo()
    patches.undo()
    assert undone == ["second", "first"]
