"""Numbers of sections by their ids."""

import numpy as np

from training_profiler.aggregation.section_kinds import SectionKinds
from training_profiler.recording.section_names import SectionNames


def test_names_that_are_added_later_have_their_kind_too():
    names = SectionNames()
    kinds = SectionKinds(names, lambda name: len(name) - 1)
    ids = np.array([0, names.id_of("a"), names.id_of("bcd")])
    assert kinds.of(ids).tolist() == [-1, 0, 2]
    later = names.id_of("efghi")
    assert kinds.of(np.array([later, ids[1]])).tolist() == [4, 0]


def test_what_is_returned_may_be_changed():
    names = SectionNames()
    ids = np.array([names.id_of("a")])
    kinds = SectionKinds(names, len)
    kinds.of(ids)[:] = 7
    assert kinds.of(ids).tolist() == [1]


def test_no_section_has_no_kind():
    assert SectionKinds(SectionNames(), len).of(np.zeros(0, np.int64)).tolist() == []
