from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import Trace
from training_profiler.trace_analysis.columns import distinct, order_of, ranked
from training_profiler.trace_analysis.event_table import read_columns


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_distinct_values_are_ascending(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.integers(-5, 20)))
def test_a_value_is_that_of_its_rank(values):
    array = np.array(values, np.int64)
    ascending, rank = ranked(array)
    assert ascending.tolist() == sorted(set(values))
    assert ascending[rank].tolist() == values


def test_names_are_decided_once_and_only_those_that_were_asked_for(tmp_path):
    columns = read_columns(Trace().op("aten::mm", 0, 5).kernel("gemm", 2, 5).op("aten::mm", 8, 5).write(tmp_path))
    asked = []

    def is_wanted(name):
        asked.append(name)
        return name == "gemm"

    for among in (columns.is_of("kernel"), columns.is_of("kernel"), columns.is_of("cpu_op"), None):
        expected = [among is None or bool(among[1])]
        assert [columns.named(is_wanted, among)[1]] == expected
    assert asked == ["gemm", "aten::mm"]


@given(st.lists(st.integers(-1, 9)))
def test_events_of_a_name_are_found_also_where_some_have_none(names):
    columns = replace(Trace().op("a", 0, 1).columns(), names=tuple("abcdefghij"), name=np.array(names, np.int64))
    for wanted in (set("a"), set("bdj"), set("abcdefghij"), set()):
        found = columns.named(wanted.__contains__)
        assert found.tolist() == [name >= 0 and columns.names[name] in wanted for name in names]


@pytest.mark.parametrize("count", [10, 2**16, 2**16 + 1, 2**20])
def test_order_is_stable_for_any_count_of_numbers(count):
    numbers = np.array([count - 1, 0, 5, count - 1, 0, 5], np.int64)
    assert order_of(numbers, count).tolist() == [1, 4, 2, 5, 0, 3]


def test_what_was_asked_of_columns_cannot_be_changed(tmp_path):
    columns = read_columns(Trace().op("aten::mm", 0, 5).write(tmp_path))
    with pytest.raises(ValueError, match="read-only"):
        columns.is_of("cpu_op")[0] = False
