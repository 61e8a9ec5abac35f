"""A program that marks its steps itself has its loop begin with its first section of a step, whatever came before."""

import pytest

from tests.support.recording import FakeRun
from tests.support.session import session_of
from training_profiler.runtime.instrumentation import Instrumentation
from training_profiler.settings.settings import Settings


@pytest.mark.parametrize("has_torch", [False, True])
def test_what_comes_before_the_loop_is_in_no_step(has_torch, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Instrumentation, "is_installed", property(lambda patches: has_torch))
    run = FakeRun()
    session = session_of(run, Settings(dir=str(tmp_path), sample_hz=0, monitor_s=0.0, warmup=0, flops=False))
    session.start()
    run.spend("setup", 100.0)
    run.clock.advance(50.0)
    for _ in range(3):
        run.spend("data_loading", 1.0)
        run.spend("forward_pass", 2.0)
        session.instrumentation.use_manual_steps()
        session.step()
    stats = session.snapshot()
    session.close()
    assert stats.step.total_s == pytest.approx(9.0)
    assert stats.step.max_s == pytest.approx(3.0)
