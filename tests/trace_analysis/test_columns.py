from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import Trace
from training_profiler.trace_analysis.event_table import read_columns


@given(st.lists(st.integers(-1, 9)))
def test_events_of_a_name_are_found_also_where_some_have_none(names):
    columns = replace(Trace().op("a", 0, 1).columns(), names=tuple("abcdefghij"), name=np.array(names, np.int64))
    for wanted in (set("a"), set("bdj"), set("abcdefghij"), set()):
        found = columns.named(wanted.__contains__)
        assert found.tolist() == [name >= 0 and columns.names[name] in wanted for name in names]


def test_what_was_asked_of_columns_cannot_be_changed(tmp_path):
    columns = read_columns(Trace().op("aten::mm", 0, 5).write(tmp_path))
    with pytest.raises(ValueError, match="read-only"):
        columns.is_of("cpu_op")[0] = False
