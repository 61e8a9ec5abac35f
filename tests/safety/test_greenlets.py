import threading

import pytest

from tests.support.greenlets import replace_threads
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.safety.greenlets import NoThreadError, library_of_greenlets


def test_python_starts_threads():
    assert library_of_greenlets() is None


@pytest.mark.parametrize(("module", "library"), [("gevent.thread", "gevent"), ("eventlet.green.thread", "eventlet")])
def test_libraries_that_start_greenlets_in_their_place(monkeypatch, module, library):
    replace_threads(monkeypatch, module)
    assert library_of_greenlets() == library


def test_wrapper_of_a_debugger_starts_threads(monkeypatch):
    replace_threads(monkeypatch, "pydevd_bundle.threads")
    assert library_of_greenlets() is None


def test_python_without_its_private_functions_starts_threads(monkeypatch):
    for name in ("_start_new_thread", "_start_joinable_thread"):
        monkeypatch.delattr(threading, name, raising=False)
    assert library_of_greenlets() is None


def test_part_that_starts_no_thread_is_disabled_without_a_word(caplog):
    def work():
        raise NoThreadError("gevent")

    guard = FaultGuard()
    guard.run("line sampler", work)
    assert guard.disabled == {"line sampler": "NoThreadError: gevent has replaced threads by greenlets"}
    assert caplog.records == []
