from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.ranks.message import Heartbeat, Message, unpack

ALIVE = st.builds(
    Heartbeat, st.integers(0), st.lists(st.text()).map(tuple), st.none() | st.floats(0, 1e9), st.text(), st.text()
)


@given(st.builds(Message, ALIVE, st.binary(), st.booleans(), st.integers(0)))
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
