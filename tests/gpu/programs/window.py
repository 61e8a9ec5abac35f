"""Steps that keep the device busy, timed by both the sections and torch.profiler.

Prints ``{"device": name, "spans": count, "ours": {section: s}, "profiler": {section: s}}``.
"""

import json
import sys
import tempfile
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from training_profiler import (
    profile_section,
    profile_step,
    start_training_profiling,
    stop_training_profiling,
)
from training_profiler.api import snapshot
from training_profiler.device import device_time

WIDTH, LAYERS, BATCH, LENGTH = 2048, 4, 8, 256
WARM_UP, STEPS = 10, 20
PARTS = ("forward_pass", "backward_pass", "optimizer_step")
device_time.SHARE = 1.0  # all steps are compared


@contextmanager
def part(name):
    """Run a span that both sides time."""
    with profile_section(name), record_function(name):
        yield


def make_step(kind):
    if sys.argv[1:] == ["convolution"]:
        blocks = [
            torch.nn.Sequential(torch.nn.Conv2d(256, 256, 3, padding=1), torch.nn.BatchNorm2d(256), torch.nn.ReLU())
            for _ in range(12)
        ]
        model = torch.nn.Sequential(*blocks).to(kind)
        data = torch.randn(64, 256, 56, 56, device=kind)
    else:
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True, norm_first=True)
        model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(kind)
        data = torch.randn(BATCH, LENGTH, WIDTH, device=kind)
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)

    def step(suffix):
        with part("forward_pass" + suffix):
            loss = model(data).square().mean()
        with part("backward_pass" + suffix):
            loss.backward()
        with part("optimizer_step" + suffix):
            optimizer.step()
            optimizer.zero_grad()
        profile_step()

    return step


def of_profiler(trace, names):
    """Return the time from the first kernel of each range's launches to the end of the last, in s by name.

    The device is never idle in between, so that is also the time between two events around the range.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    ranges = [
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"] in names
    ]
    ends = defaultdict(list)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            launched = launches.get(event["args"].get("correlation"))
            for begin, end, name in ranges:
                if launched is not None and begin <= launched <= end:
                    ends[begin, name].append((event["ts"], event["ts"] + event["dur"]))
    total_us = defaultdict(float)
    for (_, name), kernels in ends.items():
        total_us[name] += max(end for _, end in kernels) - min(begin for begin, _ in kernels)
    return {name: us / 1e6 for name, us in total_us.items()}


def main():
    kind = torch.accelerator.current_accelerator().type
    start_training_profiling(log_every=1_000_000)
    step = make_step(kind)
    for _ in range(WARM_UP):
        step("")
    torch.accelerator.synchronize()
    busy = torch.randn(8192, 8192, device=kind)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(4):  # the device is behind the host from the first span on
            busy = busy @ busy / 8192
        for _ in range(STEPS):
            step(" in the window")
        torch.accelerator.synchronize()
    names = [f"{name} in the window" for name in PARTS]
    found = snapshot().sections
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        theirs = of_profiler(json.loads(path.read_text()), names)
    stop_training_profiling()
    print(
        json.dumps(
            {
                "device": torch.get_device_module(kind).get_device_name(),
                "spans": [found[name].device_count for name in names],
                "ours": {name: found[name].device_total_s for name in names},
                "profiler": theirs,
            }
        )
    )


main()
