"""The spans of recorded steps on a device: where they were, or as early as they can have been."""

import msgspec
import pytest

from tests.support.device import device_run
from training_profiler.aggregation.step_spans import with_lanes
from training_profiler.device import device_lanes
from training_profiler.storage.journal_lines import spans_line

S = 1_000_000_000


def step(run, device_s=0.5, rest_s=2.0):
    """Run a step of two sections whose work takes longer on the device than on the host."""
    run.work("forward_pass", device_s)
    run.work("backward_pass", device_s / 2)
    run.clock.advance(rest_s)
    run.step()


def lanes_of(run, number):
    """Return the spans of a step on each device in s since the begin of the step, in the order of their begins."""
    bounds = next(held for held in run.accumulator.held_steps() if held.number == number)
    return {
        name: sorted(
            (
                (run.names.names[span.id], (span.begin_ns - bounds.begin_ns) / S, (span.end_ns - bounds.begin_ns) / S)
                for span in spans
            ),
            key=lambda span: (span[1], -span[2]),
        )
        for name, spans in run.time.lanes_of(number).items()
    }


@pytest.fixture
def begun(monkeypatch):
    return device_run(monkeypatch, warmup=0)


def test_what_a_step_shows_places_the_next_one_which_the_device_reaches_late(begun):
    step(begun)
    begun.drain()
    assert lanes_of(begun, 1)
    begun.device.queue(1.0)
    step(begun, rest_s=10.0)
    begun.drain()
    (spans,) = lanes_of(begun, 2).values()
    begins = [begin for _, begin, _ in spans]
    assert begins == pytest.approx([1.0, 1.5], abs=1e-3)
    assert begins[0] <= 1.0  # at the earliest: the clocks may drift


def test_a_step_that_the_device_has_not_reached_has_no_lane(begun):
    step(begun, device_s=20.0)
    begun.drain()
    assert lanes_of(begun, 1) == {}


def test_each_device_has_a_lane(monkeypatch):
    run = device_run(monkeypatch, count=2, warmup=0)
    run.work("forward_pass", 0.5)
    run.clock.advance(0.001)  # events at one time share a device event
    run.device.index = 1
    run.work("backward_pass", 0.5)
    run.clock.advance(2)
    run.step()
    run.drain()
    names = {lane: [name for name, _, _ in spans] for lane, spans in lanes_of(run, 1).items()}
    assert names == {"device cuda:0": ["forward_pass"], "device cuda:1": ["backward_pass"]}


def test_spans_and_events_of_a_long_run_are_bounded(begun, monkeypatch):
    monkeypatch.setattr(device_lanes, "MOST_SPANS", 3)
    for _ in range(50):
        for _ in range(5):
            begun.work("forward_pass", 0.01)
        begun.clock.advance(2)
        begun.step()
        begun.drain()
        begun.accumulator.step_spans.pop(begun.accumulator.pop_totals()[1])
    lanes = begun.time._pairing.lanes
    assert sum(len(spans) for device in lanes._devices.values() for spans in device.spans.values()) <= 4 * 3
    assert len(begun.device.events) < 100  # they are reused
    begun.finish()
    assert all(device._event is None for device in lanes._devices.values())


def test_lanes_of_devices_are_in_the_journal_after_those_of_threads(begun):
    step(begun)
    begun.drain()
    (recorded,) = begun.accumulator.step_spans.pop(begun.accumulator.pop_totals()[1])
    whole = with_lanes(recorded, begun.time.lanes_of(1))
    (row,) = msgspec.to_builtins(spans_line([whole], begun.names.names))["steps"]
    *threads, device = row[-1]
    assert [thread for thread, *_ in threads] == ["MainThread"]
    assert device[0] == "device cuda:0"
    assert device[2:] == [[0, 501_000], [501_000, 751_000]]
