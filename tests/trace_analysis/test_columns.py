from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import Trace


@given(st.lists(st.integers(-1, 9)))
def test_events_of_a_name_are_found_also_where_some_have_none(names):
    columns = replace(Trace().op("a", 0, 1).columns(), names=tuple("abcdefghij"), name=np.array(names, np.int64))
    for wanted in (set("a"), set("bdj"), set("abcdefghij"), set()):
        found = columns.named(wanted.__contains__)
        assert found.tolist() == [name >= 0 and columns.names[name] in wanted for name in names]
