import copy
import pickle

import pytest

from training_profiler.recording.timed_function import StandIn, stand_in


class Like(StandIn):
    __slots__ = ()

    def _profiler_like(self, wrapped):
        return stand_in(Like, wrapped)

    def __reduce_ex__(self, protocol):
        return stand_in, (Like, self._profiler_wrapped)


class Loader:
    """Of the user."""

    def __init__(self, size=2):
        self.size = size

    def __len__(self):
        return self.size

    def __contains__(self, value):
        return value == self.size

    def __eq__(self, other):
        return isinstance(other, Loader) and other.size == self.size

    __hash__ = None


@pytest.fixture
def loader():
    return Loader()


def test_it_is_of_the_users_class(loader):
    one = stand_in(Like, loader)
    assert isinstance(one, Loader)
    assert (type(one).__name__, one.__module__, one.__doc__) == ("Loader", __name__, "Of the user.")
    assert type(one) is type(stand_in(Like, Loader()))


def test_special_methods_are_the_users(loader):
    one = stand_in(Like, loader)
    assert (len(one), 2 in one, 3 in one, bool(one), one == Loader(), one == stand_in(Like, Loader(3))) == (
        (2, True, False, True, True, False)
    )
    with pytest.raises(TypeError, match="unhashable type: 'Loader'"):
        hash(one)
    with pytest.raises(TypeError, match="'Loader' object is not subscriptable"):
        one[0]


def test_attributes_are_set_and_deleted_on_the_users_object(loader):
    one = stand_in(Like, loader)
    one.epoch = 3
    assert (loader.epoch, vars(one)) == (3, {"size": 2, "epoch": 3})
    del one.epoch
    assert not hasattr(loader, "epoch")


def test_copies_and_pickles_wrap_a_copy(loader):
    one = stand_in(Like, loader)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert issubclass(type(other), Like)
        assert other == one
        other.size = 5
        assert loader.size == 2


def test_without_length_it_has_none():
    one = stand_in(Like, (number for number in range(3)))
    assert bool(one)
    assert not hasattr(type(one), "__len__")
    with pytest.raises(TypeError, match="object of type 'generator' has no len"):
        len(one)


def test_errors_of_the_users_object_have_no_frames_of_ours(loader):
    loader.size = -1
    with pytest.raises(ValueError, match="should return >= 0") as raised:
        len(stand_in(Like, loader))
    assert [frame.name for frame in raised.traceback] == ["test_errors_of_the_users_object_have_no_frames_of_ours"]


def test_class_being_made_has_no_wrapped_object():
    with pytest.raises(AttributeError):
        _ = Like.__new__(Like)._profiler_wrapped
