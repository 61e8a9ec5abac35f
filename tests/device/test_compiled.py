"""Stamps between two compiled graphs, where dynamo looks at every function that is called."""

from dataclasses import replace
from time import perf_counter_ns

import pytest

from tests.support.device import FakeDevice
from tests.support.recording import FakeClock
from tests.support.versions import needs_torch
from training_profiler.device.device_lanes import DeviceClock
from training_profiler.instrumentation.patches.dynamo import hide_from_dynamo
from training_profiler.recording.recorder import Recorder

torch = pytest.importorskip("torch")


@needs_torch(2, 7, "before, dynamo compiles the section too")
@pytest.mark.parametrize("is_dynamo_first", [True, False])
def test_a_kept_section_in_a_compiled_function_is_stamped_and_the_stamping_is_not_compiled(is_dynamo_first):
    device, recorder = FakeDevice(FakeClock()), Recorder(perf_counter_ns)
    is_compiled = []

    def is_capturing():
        is_compiled.append(torch.compiler.is_compiling())
        return False

    clock = DeviceClock(replace(device.accelerator(), is_capturing=is_capturing), recorder.clock)
    if is_dynamo_first:
        hide_from_dynamo()
    recorder.use_clock(recorder.buffer(), clock.stamping())
    if not is_dynamo_first:  # a profiled program imports it with its first ``torch.compile``, after the clock was made
        hide_from_dynamo()
    kept = recorder.section("forward_pass")

    def step(x):
        x = x + 1
        torch._dynamo.graph_break()
        with kept:
            return x * 2

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="eager")
    for _ in range(3):
        compiled(torch.ones(3))
    torch._dynamo.reset()
    assert is_compiled == 6 * [False]
    assert len(clock.stamps) == 6
