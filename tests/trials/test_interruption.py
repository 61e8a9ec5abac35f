"""Requests to end are noted, and raised only where a session asks."""

import os
import signal

import pytest

from training_profiler.trials.interruption import ASKED_TO_END, Interruption


@pytest.mark.parametrize("number", ASKED_TO_END)
def test_a_request_to_end_is_raised_where_it_is_asked_for_and_further_ones_change_nothing(number):
    before = signal.signal(number, signal.default_int_handler)  # under nohup, SIGHUP is ignored
    try:
        with Interruption() as interruption:
            interruption.check()
            for _ in range(3):
                os.kill(os.getpid(), number)
            assert interruption.has_come
            with pytest.raises(KeyboardInterrupt):
                interruption.check()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interruption.has_come
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
