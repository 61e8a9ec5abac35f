"""Device time of sections, and its missing spans, on a device that runs behind the host.

Each line of tests/golden/answers/device_time.txt is a program (tests/support/script.py), what it asks for in brackets,
and below it the times, the missing spans, and the calls of the driver since "k".

| letter | event |
| --- | --- |
| `w` `W` | the host makes work for the device in 1 ms, which takes 0.5 s, 0.01 s |
| `t{}` `d{}` `o{}` `O{}` | a section, one that is discarded, one of the profiler's, one that nothing can be noted of |
| `g` `h` | a step whose work takes 9 s, 1 s |
| `.` `,` `m` | 1 s, 0.1 s, 60 s pass |
| `s` `b` `D` | another stream, it is busy for 5 s, another device |
| `(` `)` | a graph is captured |
| `x` `y` `X` | the driver raises, works again, hangs |
| `F` `r` `P` `E` | what was recorded is handed out, only resolved; a look at the accelerator; the run ends |
| `S` `@{}` | device time is asked for by waiting; on another thread |
| `k` `?` | calls of the driver are forgotten, are shown |
"""

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.support.device import DeviceRun, FakeEvent, device_run
from tests.support.golden import assert_answers
from tests.support.script import Events, events_of
from training_profiler.device import device_lanes as device_clock
from training_profiler.device import device_time
from training_profiler.device.device_time import DeviceTime
from training_profiler.model.snapshot import PROFILER, DeviceTimingStats


def stats(spans, **unmeasured):
    return DeviceTimingStats("cuda", "NVIDIA Fake", "events", spans, unmeasured)


def simple(run: DeviceRun) -> dict[str, Callable[[], object]]:
    device = run.device
    error = RuntimeError("CUDA error: launch failure")
    return {
        "s": lambda: setattr(device, "stream", device.stream + 1),
        "b": lambda: device.queue(5.0),
        "D": lambda: setattr(device, "index", 1),
        "(": lambda: setattr(device, "is_capturing", True),
        ")": lambda: setattr(device, "is_capturing", False),
        "x": lambda: setattr(device, "breaks", error),
        "y": lambda: setattr(device, "breaks", None),
        "X": lambda: setattr(device, "is_stuck", True),
        "k": device.calls.clear,
        "F": run.flush,
        "r": run.time.resolve,
        "P": run.poll,
        "E": run.finish,
        "S": lambda: run.time.start("sync"),
    }


def make(run: DeviceRun, events: Events, shown: list[str]) -> None:
    device = run.device
    sections = {
        "t": lambda: run.section("training"),
        "o": lambda: run.recorder.own_section(PROFILER),
        "O": lambda: run.recorder.own_section("odd"),
    }
    for event, inside in events:
        match event:
            case "w" | "W":
                run.work("forward_pass", {"w": 0.5, "W": 0.01}[event])
            case "t" | "o" | "O":
                with sections[event]():
                    make(run, inside, shown)
            case "d":
                section = run.section("data_loading")
                section.__enter__()
                make(run, inside, shown)
                section.discard()
            case "g" | "h":
                seconds = {"g": 9.0, "h": 1.0}[event]
                device.queue(seconds)
                run.clock.advance(10)
                run.step(forward_pass=seconds)
            case "." | "," | "m":
                run.clock.advance({".": 1, ",": 0.1, "m": 60}[event])
            case "@":
                thread = threading.Thread(target=make, args=(run, inside, shown))
                thread.start()
                thread.join()
            case "?":
                calls = Counter(device.calls)
                shown.append(f"calls {' '.join(f'{calls[name]}x {name}' for name in calls) or '-'}")
            case _:
                simple(run)[event]()


def options_of(text: str) -> dict[str, Any]:
    return {
        name: int(value) if value.isdigit() else value for name, value in (each.split("=") for each in text.split())
    }


def answer(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    name, _, program = line.rpartition(": ")
    options = options_of(name.partition("[")[2].rstrip("]"))
    pool, queues, found = options.pop("pool", 0), options.pop("queues", 0), options.pop("found", 1)
    shown: list[str] = []
    with monkeypatch.context() as patched:
        if pool:
            patched.setattr(device_clock.DeviceClock.__init__, "__defaults__", (pool,))
        run = device_run(patched, **options, is_begun=found == 1 and not queues)
        if not found:
            run.found = lambda: None
        if queues:
            run.time = DeviceTime(run.recorder, run.accumulator, run.guard, run.pay, cuda_connections=queues)
            run.time.start(options.get("timing", "auto"))
        patched.setattr(device_time.time, "monotonic", lambda: run.clock.now_ns / 1e9)
        patched.setattr(device_time.time, "sleep", run.clock.advance)
        make(run, events_of(program), shown)
        snapshot = run.snapshot()
    for section in snapshot.sections.values():
        if section.count:
            means = "" if section.device_avg_s is None else f", {section.device_count}x {section.device_avg_s:.4g}"
            on_device = means and f"{means} = {section.device_total_s:.4g}"
            shown.append(f"{section.name} {section.count}x {section.total_s:.4g}{on_device} s")
    if snapshot.device is not None:
        shown.append(f"{snapshot.device.spans} spans by {snapshot.device.timing}")
        shown += [f"{number} {why}" for why, number in snapshot.device.unmeasured.items()]
    shown.append(f"{len(run.device.events)} events")
    return "; ".join([*shown, *(f"{part} off: {why}" for part, why in run.disabled.items()), *run.time.notes()])


def test_sections_have_the_time_that_their_work_takes_on_the_device(monkeypatch):
    assert_answers("device_time", lambda line: answer(line, monkeypatch))


@pytest.fixture
def no_wait(monkeypatch, run):
    """Waiting at the end of the run lets the fake clocks go on instead."""
    monkeypatch.setattr(device_time.time, "monotonic", lambda: run.clock.now_ns / 1e9)
    monkeypatch.setattr(device_time.time, "sleep", run.clock.advance)


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
