import logging

from training_profiler.safety.fault_guard import FaultGuard


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
