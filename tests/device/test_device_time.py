"""Device time of sections, and its missing spans, on a device that runs behind the host."""

import gc
import threading
import weakref
from dataclasses import replace
from itertools import count

import pytest

from tests.support.device import FakeEvent, device_run
from training_profiler.device import device_lanes as device_clock
from training_profiler.device import device_time
from training_profiler.device.device_time import DeviceTime
from training_profiler.model.snapshot import PROFILER, DeviceTimingStats


@pytest.fixture
def small_pool(monkeypatch):
    monkeypatch.setattr(device_clock.DeviceClock.__init__, "__defaults__", (20,))


def stats(spans, **unmeasured):
    return DeviceTimingStats("cuda", "NVIDIA Fake", "events", spans, unmeasured)


def test_a_section_has_the_time_that_its_work_takes_on_the_device(run):
    run.work("forward_pass", device_s=0.25)
    run.clock.advance(1)
    run.work("forward_pass", device_s=0.75)
    run.clock.advance(1)
    # Each begins while the device is idle, so that the millisecond in which the host makes the work is the device's.
    assert run.device_s() == {"forward_pass": (2, pytest.approx(1.002))}
    assert run.snapshot().sections["forward_pass"].device_avg_s == pytest.approx(0.501)
    assert run.snapshot().sections["forward_pass"].total_s == pytest.approx(0.002)


def test_a_span_that_ends_on_a_stream_that_is_ahead_is_not_measured(run):
    run.device.stream = 1
    run.device.queue(5.0)
    with run.section("copy"):
        run.clock.advance(0.5)
        run.device.stream = 2
    run.clock.advance(10)
    assert run.device_s() == {}
    assert run.time.stats().unmeasured == {"ended on a stream that was ahead of the one it began on": 1}


def test_a_span_across_two_devices_is_not_measured(monkeypatch):
    run = device_run(monkeypatch, count=2)
    with run.section("forward_pass"):
        run.clock.advance(0.5)
        run.device.index = 1
    run.clock.advance(1)
    run.work("forward_pass", device_s=0.5)
    run.clock.advance(10)
    assert run.device_s() == {"forward_pass": (1, pytest.approx(0.501))}
    assert run.time.stats().unmeasured == {"began on another device": 1}


def test_an_empty_pool_is_counted_and_the_host_time_is_there(small_pool, monkeypatch):
    run = device_run(monkeypatch)
    for _ in range(12):
        run.work("forward_pass", device_s=0.5)
        run.clock.advance(0.1)
    run.clock.advance(60)
    assert run.device_s()["forward_pass"][0] == 10
    assert run.snapshot().sections["forward_pass"].count == 12
    assert run.time.stats() == stats(10, **{"the pool of events was empty": 2})


def test_events_are_used_again_and_a_section_that_stays_open_keeps_its_own(small_pool, monkeypatch):
    run = device_run(monkeypatch)
    with run.section("training"):
        run.clock.advance(0.5)
        for _ in range(50):
            run.work("forward_pass", device_s=0.5)
            run.clock.advance(1)
            run.flush()
    run.clock.advance(1)
    assert run.device_s()["training"] == (1, pytest.approx(0.5 + 50 * 1.001))
    assert run.time.stats() == stats(51)
    assert len(run.device.events) <= 20


def test_discarded_spans_give_their_events_back(small_pool, monkeypatch):
    run = device_run(monkeypatch)
    for _ in range(100):
        section = run.section("data_loading")
        section.__enter__()
        run.clock.advance(0.5)
        section.discard()
        run.flush()
    run.work("forward_pass", device_s=0.5)
    run.clock.advance(1)
    assert run.time.stats() == stats(0)
    assert run.device_s().keys() == {"forward_pass"}


def test_in_a_capture_nothing_is_recorded_asked_or_waited_for(run):
    run.work("forward_pass", device_s=0.5)
    run.clock.advance(1)
    run.device.is_capturing = True
    run.device.calls.clear()
    run.work("captured", device_s=0.0)
    run.flush()
    assert run.device.calls == []
    run.device.is_capturing = False
    assert run.device_s().keys() == {"forward_pass"}
    assert run.time.stats() == stats(1, **{"a graph was captured": 1})


def test_no_accelerator_is_begun_with_during_a_capture_or_without_timing(monkeypatch):
    run = device_run(monkeypatch, is_begun=False)
    run.device.is_capturing = True
    run.poll()
    assert run.device.calls == []
    run.device.is_capturing, run.device.breaks = False, RuntimeError("events of mps have no timing")
    run.clock.advance(1)
    run.poll()
    run.work("forward_pass", device_s=0.5)
    assert run.snapshot().device is None
    assert run.disabled == {"device time": "events of mps have no timing"}


def test_a_span_that_ends_where_nothing_could_be_noted_is_counted_as_that(run):
    with run.recorder.own_section("odd"):
        run.clock.advance(1)
    run.work("forward_pass", device_s=0.5)
    assert run.stats().unmeasured == {"began or ended where nothing could be noted": 1}


def test_host_timing_leaves_the_device_alone(monkeypatch):
    run = device_run(monkeypatch, "host")
    run.work("forward_pass", device_s=0.5)
    assert run.snapshot().device is None
    assert run.device.calls == []


def test_other_threads_have_host_time_alone(run):
    other = threading.Thread(target=lambda: run.work("prefetch", device_s=1.0))
    other.start()
    other.join()
    run.clock.advance(5)
    assert run.device_s() == {}
    assert run.snapshot().sections["prefetch"].count == 1
    assert "record" not in run.device.calls


def test_another_thread_that_drains_does_not_ask_the_device(run):
    run.work("forward_pass", device_s=1.0)
    run.clock.advance(5)
    run.device.calls.clear()
    other = threading.Thread(target=run.time.resolve)
    other.start()
    other.join()
    assert run.device.calls == []
    assert run.device_s().keys() == {"forward_pass"}


@pytest.mark.parametrize("timing", ["auto", "sync"])
def test_the_profilers_own_work_is_left_alone(monkeypatch, timing):
    run = device_run(monkeypatch, timing)
    with run.recorder.own_section(PROFILER):
        run.clock.advance(1)
    assert run.device.calls == []
    assert run.device_s() == {}
    assert (run.time.stats().spans, run.time.stats().unmeasured) == (0, {})


def test_configured_warm_up_is_left_out_of_device_averages(monkeypatch):
    run = device_run(monkeypatch, warmup=2)
    for seconds in (9.0, 9.0, 1.0, 1.0):
        run.device.queue(seconds)
        run.clock.advance(10)
        run.step(forward_pass=seconds)
    assert run.device_s() == {"forward_pass": (2, 2.0)}


class TestSync:
    @pytest.fixture
    def run(self, monkeypatch):
        return device_run(monkeypatch, "sync")

    def test_the_clock_is_read_after_the_device_was_waited_for(self, run):
        run.device.queue(3.0)
        run.work("forward_pass", device_s=0.5)
        section = run.snapshot().sections["forward_pass"]
        assert (section.total_s, section.device_total_s) == (0.501, 0.501)
        assert run.device.calls == ["synchronize", "synchronize"]
        assert run.time.stats() == DeviceTimingStats("cuda", "NVIDIA Fake", "sync", 1, {})
        assert run.time.notes() == [
            "timing=sync: the device was waited for at both ends of every section, which slows a training down"
        ]

    def test_a_capture_is_not_waited_for(self, run):
        run.device.is_capturing = True
        run.work("captured", device_s=0.5)
        run.device.is_capturing = False
        run.work("forward_pass", device_s=0.5)
        assert run.device_s().keys() == {"forward_pass"}
        assert run.time.stats().unmeasured == {"a graph was captured": 1}


@pytest.mark.parametrize("timing", ["auto", "sync"])
def test_a_driver_that_raises_switches_device_time_off_alone(monkeypatch, timing):
    run = device_run(monkeypatch, timing)
    run.device.breaks = RuntimeError("CUDA error: unspecified launch failure")
    for _ in range(5):
        run.work("forward_pass", device_s=0.5)
    assert run.snapshot().sections["forward_pass"].count == 5
    assert run.disabled == {"device time": "CUDA error: unspecified launch failure"}
    assert len(run.device.calls) == 1
    run.device.breaks = None
    run.work("forward_pass", device_s=0.5)
    run.clock.advance(1)
    run.poll()
    assert run.device_s() == {}
    assert len(run.device.calls) == 1


def test_a_driver_that_raises_when_asked_switches_it_off_and_keeps_what_was_known(run):
    run.work("forward_pass", device_s=0.5)
    run.clock.advance(1)
    run.flush()
    run.work("forward_pass", device_s=0.5)
    run.work("forward_pass", device_s=0.5)
    run.device.breaks = RuntimeError("an error of the program's")
    run.flush()
    assert run.disabled == {"device time": "an error of the program's"}
    assert run.snapshot().sections["forward_pass"].device_count == 1
    assert run.time.stats().spans == 1


@pytest.mark.usefixtures("no_wait")
def test_after_an_error_of_the_driver_no_event_is_freed(run):
    run.work("forward_pass", device_s=0.5)
    run.flush()
    run.device.breaks = RuntimeError("CUDA error: device-side assert triggered")
    run.finish()
    assert run.disabled
    events = [weakref.ref(event) for event in run.device.events]
    run.device.events.clear()
    run.time = None
    gc.collect()
    assert all(event() is not None for event in events)


@pytest.fixture
def no_wait(monkeypatch, run):
    """Waiting at the end of the run lets the fake clocks go on instead."""
    monkeypatch.setattr(device_time.time, "monotonic", lambda: run.clock.now_ns / 1e9)
    monkeypatch.setattr(device_time.time, "sleep", run.clock.advance)


@pytest.mark.usefixtures("no_wait")
def test_at_the_end_the_device_is_given_a_moment_for_the_rest(run):
    run.work("forward_pass", device_s=0.5)
    assert run.finish().sections["forward_pass"].device_total_s == pytest.approx(0.501)
    assert "synchronize" not in run.device.calls


@pytest.mark.usefixtures("no_wait")
@pytest.mark.parametrize("is_capturing", [False, True])
def test_what_is_not_done_at_the_end_is_counted_and_nothing_is_asked_in_a_capture(run, is_capturing):
    run.work("forward_pass", device_s=0.5)
    run.device.is_stuck, run.device.is_capturing = not is_capturing, is_capturing
    run.device.calls.clear()
    run.finish()
    assert run.time.stats() == stats(0, **{"the device had not come to their end when the run ended": 1})
    assert bool(run.device.calls) is not is_capturing


@pytest.mark.usefixtures("no_wait")
def test_after_the_end_nothing_is_stamped_and_all_events_are_freed(run):
    run.work("forward_pass", device_s=0.5)
    run.finish()
    events = [weakref.ref(event) for event in run.device.events]
    run.device.events.clear()
    gc.collect()
    assert [event() for event in events if event() is not None] == []
    run.device.calls.clear()
    run.work("forward_pass", device_s=0.5)
    run.flush()
    assert run.device.calls == []


def test_a_forked_child_calls_no_driver_and_frees_no_event(run):
    run.work("forward_pass", device_s=0.5)
    run.flush()
    events = [weakref.ref(event) for event in run.device.events]
    run.device.calls.clear()
    run.time.after_fork_in_child()
    run.work("forward_pass", device_s=0.5)
    run.drain()
    assert run.device.calls == []
    run.device.events.clear()
    run.time = None
    gc.collect()
    assert all(event() is not None for event in events)


def test_another_timing_holds_from_the_next_look(run):
    run.work("forward_pass", device_s=0.5)
    run.time.start("sync")
    run.clock.advance(60)
    run.poll()
    run.work("forward_pass", device_s=0.5)
    run.flush()
    assert run.time.stats().timing == "sync"
    assert run.time.stats().spans == 1


def costly_run(monkeypatch, cost_ns):
    """Return a run in which each stamp takes so long."""
    run = device_run(monkeypatch, is_begun=False)

    def current_index():
        run.clock.advance_ns(cost_ns())
        return 0

    found = replace(run.device.accelerator(), current_index=current_index)
    run.found = lambda: found
    run.poll()
    return run


class TestCost:
    @pytest.fixture
    def run(self, monkeypatch):
        return costly_run(monkeypatch, lambda: 10_000)

    def train(self, run, steps, step_s):
        for step in range(steps):
            run.step(forward_pass=step_s)
            run.poll()
            if step % 50 == 0:
                run.drain()
        run.drain()

    def test_of_short_steps_as_many_are_stamped_as_may_be(self, run):
        self.train(run, 20_000, step_s=0.001)
        found = run.stats()
        # 20 us a step of 1 ms and 6 us on the device: 0.2 % are one step in 13, and 10 ms are free.
        assert 1_500 < found.spans < 2_300
        assert found.unmeasured == {"left out to keep the cost low": 20_000 - found.spans}
        assert run.device_s()["forward_pass"][1] == pytest.approx(found.spans * 0.00101, rel=0.02)

    def test_a_span_that_begins_where_nothing_is_stamped_is_left_out_for_its_cost(self, run):
        self.train(run, 2_000, step_s=0.001)
        left_out = run.stats().unmeasured["left out to keep the cost low"]
        with run.section("validation_epoch"):
            run.clock.advance(60)
            run.poll()
        assert run.stats().unmeasured == {"left out to keep the cost low": left_out + 1}

    def test_a_stamp_in_which_another_thread_had_its_turn_is_not_what_stamps_cost(self, monkeypatch):
        stamps = count(1)
        run = costly_run(monkeypatch, lambda: 5_000_000 if next(stamps) % 16 == 0 else 10_000)
        assert run.time._stamp_ns == 10_000

    def test_wall_time_in_which_others_ran_is_not_what_reading_events_costs(self, run, monkeypatch):
        query = FakeEvent.query

        def preempted(event):
            run.clock.advance(0.1)
            return query(event)

        monkeypatch.setattr(FakeEvent, "query", preempted)
        self.train(run, 100, step_s=0.01)
        assert run.stats() == stats(100)

    def test_cpu_time_of_reading_events_switches_the_stamps_off(self, run):
        add_device_time = run.accumulator.add_device_time

        def slow(id, ns):
            run.cpu_ns += 10_000_000
            add_device_time(id, ns)

        run.accumulator.add_device_time = slow
        self.train(run, 100, step_s=0.01)
        assert run.stats().unmeasured["left out to keep the cost low"] > 40

    def test_cost_on_the_training_thread_is_reported(self, run):
        self.train(run, 10, step_s=0.1)
        assert run.paid_ns == 20 * 10_000


@pytest.mark.parametrize(("timing", "is_said"), [("events", True), ("sync", True), ("auto", False)])
def test_device_time_that_was_asked_for_and_cannot_be_had_is_said(monkeypatch, timing, is_said):
    run = device_run(monkeypatch, timing, is_begun=False)
    run.found = lambda: None
    run.poll()
    note = f"device time was asked for (timing={timing}), but the training used no accelerator"
    assert run.time.notes() == [note] * is_said


@pytest.mark.parametrize("timing", ["auto", "events"])
def test_with_one_queue_of_work_events_are_made_where_asked_for(monkeypatch, timing):
    run = device_run(monkeypatch, timing, is_begun=False)
    run.time = DeviceTime(run.recorder, run.accumulator, run.guard, run.pay, cuda_connections=1)
    run.time.start(timing)
    for _ in range(3):
        run.clock.advance(1.0)
        run.poll()
        run.work("forward_pass", device_s=0.01)
    assert run.snapshot().sections["forward_pass"].count == 3
    assert bool(run.device.calls) is (timing == "events")
    said = "device time is off: with CUDA_DEVICE_MAX_CONNECTIONS=1 "
    assert [note[: len(said)] for note in run.time.notes()] == [said] * (timing == "auto")
