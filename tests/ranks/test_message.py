from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.base.text import printable
from training_profiler.ranks.message import MOST_MESSAGE_BYTES, Heartbeat, Message, unpack

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


@pytest.mark.parametrize("packed", [b"", b"[]\n{}", b"[1,0,0,[]]\n", b"{}\n", b'["a",0,0,[],null,""]\n'])
def test_another_form_is_refused(packed):
    with pytest.raises((ValueError, TypeError)):
        unpack(packed)


def test_text_of_another_process_is_escaped():
    message = unpack(Message(Heartbeat(1, ("a\x1b[2J\n",), 1.0, "host\u202e")).pack())
    assert (message.heartbeat.inside, message.heartbeat.host) == (("a\\x1b[2J\\n",), "host\\u202e")


@pytest.mark.parametrize(
    "packed", [b"x" * (MOST_MESSAGE_BYTES + 1), b'[1,0,-1,[],null,""]\n', b'[1,0,1,[],1e999,""]\n', b"[" * 100_000]
)
def test_a_hostile_message_is_refused(packed):
    with pytest.raises((ValueError, RecursionError)):
        unpack(packed)
