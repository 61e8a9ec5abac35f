from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.base.text import printable
from training_profiler.ranks.message import (
    MOST_MESSAGE_BYTES,
    Heartbeat,
    Message,
    message_interval_s,
    outdated_after_s,
    unpack,
    unresponsive_after_s,
)

TEXT = st.text().map(printable)
COUNT = st.integers(0, 2**62)
ALIVE = st.builds(Heartbeat, COUNT, st.lists(TEXT).map(tuple), st.none() | st.floats(0, 1e9), TEXT, TEXT)


@given(st.builds(Message, ALIVE, st.binary(), st.booleans(), COUNT, st.binary()))
def test_message_survives_packing(message):
    assert unpack(message.pack()) == message


@given(st.binary())
def test_garbage_raises_only_documented_errors(packed):
    with suppress(ValueError, TypeError):
        unpack(packed)


@pytest.mark.parametrize(
    "packed",
    [
        *(b"", b"[]\n{}", b"[1,0,0,[]]\n", b"{}\n", b'["a",0,0,[],null,""]\n', b"[" * 100_000),
        *(b"x" * (MOST_MESSAGE_BYTES + 1), b'[1,0,-1,[],null,""]\n', b'[1,0,1,[],1e999,""]\n'),
    ],
)
def test_another_form_and_a_hostile_message_are_refused(packed):
    with pytest.raises((ValueError, TypeError, RecursionError)):
        unpack(packed)


def test_limits_at_small_and_large_world_sizes():
    """All ranks together send 100 messages a second; silence is five intervals, an old journal three flushes."""
    assert [message_interval_s(ranks) for ranks in (1, 100, 1024, 16_384)] == [1.0, 1.0, 10.24, 163.84]
    assert [unresponsive_after_s(s) for s in (1.0, 2.0, 10.24)] == pytest.approx([10.0, 10.0, 51.2])
    runs = ((10.0, 8), (100.0, 8), (10.0, 16_384))
    assert [outdated_after_s(*run) for run in runs] == pytest.approx([60.0, 300.0, 491.52])
