"""Objects of the user's are known by identity, and are not kept alive."""

import sys

from training_profiler.recording.object_identity import LiveObjects


class Own:
    """Has an equality of its own, and so no hash."""

    def __eq__(self, other):
        return True


def test_live_objects_are_each_there_once_until_they_are_deleted():
    objects, first, second = LiveObjects(), Own(), Own()
    for value in (first, second, first, []):  # a list cannot be referenced weakly
        objects.add(value)
    assert [id(value) for value in objects] == [id(first), id(second)]
    del value, first
    assert len(list(objects)) == 1
    assert len(objects._references) == 1


def test_no_python_code_runs_when_an_object_ends_where_ctrl_c_would_be_lost():
    objects, value, called = LiveObjects(), Own(), []
    objects.add(value)
    sys.setprofile(lambda frame, event, argument: called.append((event, frame.f_code.co_name)))
    del value
    sys.setprofile(None)
    assert [event for event, _ in called if event == "call"] == []
    assert not objects._references
