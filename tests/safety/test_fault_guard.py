import io
import logging
import string

import pytest

from training_profiler.safety.fault_guard import FaultGuard, log


def fail() -> None:
    raise ZeroDivisionError("ours")


def test_failed_part_is_disabled_and_logged_once(caplog):
    guard, calls = FaultGuard(), []
    with caplog.at_level(logging.WARNING):
        guard.run("statistics", fail)
        guard.run("statistics", lambda: calls.append("statistics"))
    assert calls == []
    assert guard.disabled == {"statistics": "ZeroDivisionError: ours"}
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None


def test_other_parts_go_on():
    guard, calls = FaultGuard(), []
    guard.run("statistics", fail)
    guard.run("console", lambda: calls.append("console"))
    assert calls == ["console"]


def test_operating_system_errors_are_logged_without_traceback(caplog):
    def refuse() -> None:
        raise OSError("disk full")

    guard = FaultGuard()
    guard.run("run folder", refuse)
    assert not caplog.records[0].exc_info


def test_failing_log_handler_does_not_reach_the_training(monkeypatch):
    guard = FaultGuard()
    monkeypatch.setattr("training_profiler.safety.fault_guard.log.warning", lambda *args, **kwargs: fail())
    guard.run("statistics", fail)
    assert guard.disabled == {"statistics": "ZeroDivisionError: ours"}


@pytest.fixture
def logged(monkeypatch):
    """Return a function that lets a part fail, with handlers of the user's, and returns what each of them prints."""
    root = logging.Logger("root of a test")
    monkeypatch.setattr(log, "parent", root)
    monkeypatch.setattr(log, "handlers", [])

    def run(*formatters, of=root):
        streams = [io.StringIO() for _ in formatters]
        for stream, formatter in zip(streams, formatters, strict=True):
            handler = logging.StreamHandler(stream)
            handler.setFormatter(formatter)
            of.addHandler(handler)
        FaultGuard().run("console", refuse)
        return [stream.getvalue() for stream in streams]

    return run


def refuse() -> None:
    raise OSError("closed")


SENTENCE = "console switched off, the training goes on: OSError: closed\n"


def test_a_message_says_who_speaks_where_the_program_has_no_logging(logged, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(stream))
    logged()
    assert stream.getvalue() == f"Profiler: {SENTENCE}"


@pytest.mark.parametrize(
    ("formatter", "begin"),
    [
        (None, "Profiler: "),
        (logging.Formatter("%(message)s"), "Profiler: "),
        (logging.Formatter("%(levelname)s %(filename)s %(message)s"), "WARNING fault_guard.py Profiler: "),
        (logging.Formatter(logging.BASIC_FORMAT), "WARNING:training_profiler:"),
        (logging.Formatter("%(name)-20s %(message)s"), "training_profiler    "),
        (logging.Formatter("{name} {message}", style="{"), "training_profiler "),
        (logging.Formatter("{levelname} {message}", style="{"), "WARNING Profiler: "),
        (logging.Formatter("$name $message", style="$"), "training_profiler "),
        (logging.Formatter("${name} $message", style="$"), "training_profiler "),
        (logging.Formatter("$levelname $message", style="$"), "WARNING Profiler: "),
    ],
)
def test_a_message_says_who_speaks_once(logged, formatter, begin):
    assert logged(formatter) == [begin + SENTENCE]


def test_where_one_of_several_handlers_has_no_name_the_message_has_it(logged):
    by_name = logging.Formatter(logging.BASIC_FORMAT)
    assert logged(by_name, None) == [f"WARNING:training_profiler:Profiler: {SENTENCE}", f"Profiler: {SENTENCE}"]


def test_handlers_of_our_own_logger_count_alone_if_it_does_not_propagate(logged, monkeypatch):
    monkeypatch.setattr(log, "propagate", False)
    log.parent.addHandler(logging.StreamHandler(io.StringIO()))
    assert logged(logging.Formatter(logging.BASIC_FORMAT), of=log) == [f"WARNING:training_profiler:{SENTENCE}"]


def test_a_formatter_of_any_kind_is_taken(logged):
    class Own:
        def format(self, record):
            return string.Template("[$text]").substitute(text=record.getMessage())

    assert logged(Own()) == [f"[Profiler: {SENTENCE.rstrip()}]\n"]
