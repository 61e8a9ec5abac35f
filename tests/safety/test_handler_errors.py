import signal
import threading
from functools import partial

import pytest

from training_profiler.runtime.shutdown import held_handler_errors


class Planted(Exception):
    pass


def fail(number, frame):
    raise Planted(number)


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.signal(number, fail) for number in (signal.SIGUSR1, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_work_goes_on_and_the_error_is_kept():
    with held_handler_errors() as held:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert [str(error) for error in held] == [str(int(signal.SIGUSR1))] * 2
    assert signal.getsignal(signal.SIGUSR1) is fail


def test_handler_that_asks_the_process_to_end_raises_at_once():
    with pytest.raises(Planted), held_handler_errors():
        signal.raise_signal(signal.SIGHUP)


def test_exit_from_a_handler_ends_the_work():
    def leave(number, frame):
        raise SystemExit(3)

    signal.signal(signal.SIGUSR1, leave)
    with pytest.raises(SystemExit), held_handler_errors():
        signal.raise_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is leave


def test_handler_that_was_installed_meanwhile_stays():
    later = partial(fail)
    with held_handler_errors():
        signal.signal(signal.SIGUSR1, later)
    assert signal.getsignal(signal.SIGUSR1) is later


def test_other_threads_leave_handlers_alone():
    seen = []

    def work():
        with held_handler_errors():
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [fail]
