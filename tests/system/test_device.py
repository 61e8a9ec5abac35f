"""Device time in whole processes, on a fake accelerator."""

import json
from pathlib import Path

from tests.system.scripts import report_command, run_without_torch

DEVICE = """
import os, time
from training_profiler import *
from training_profiler.device import device_time
from training_profiler.base import backends

device_time.FREE_NS = 10**10  # on a slow machine the first spans would be left out for their cost

class Device:
    pid = os.getpid()
    idle_from = 0.0
    broken = False

def call():
    assert os.getpid() == Device.pid, "the driver is the parent's"
    if Device.broken:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

class Event:
    def record(self):
        call()
        self.at = max(time.perf_counter(), Device.idle_from)
    def query(self):
        call()
        return time.perf_counter() >= self.at
    def elapsed_time(self, end):
        return 1000 * (end.at - self.at)

def synchronize():
    call()
    time.sleep(max(0.0, Device.idle_from - time.perf_counter()))

accelerator = backends.Accelerator(backends.CUDA, "cuda", "NVIDIA Fake", Event, lambda: 0, lambda: False, synchronize)
backends.find_accelerator = lambda: accelerator

def queue(seconds):
    Device.idle_from = max(Device.idle_from, time.perf_counter()) + seconds

def step():
    with profile_section("data_loading"):
        pass
    with profile_section("forward_pass"):
        queue(0.01)
    profile_step()
    time.sleep(0.001)
"""


def lines_of(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(word)]


def test_run_reports_the_device_time_of_its_sections(tmp_path: Path) -> None:
    outcome = run_without_torch(tmp_path, DEVICE + "for _ in range(10):\n    step()\n")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.report["device"] == {
        "kind": "cuda",
        "name": "NVIDIA Fake",
        "timing": "events",
        "spans": 18,  # the accelerator is detected after the first step
        "unmeasured": {},
    }
    forward = outcome.report["sections"]["forward_pass"]
    assert forward["device_count"] == 9
    assert forward["device_total_s"] >= 0.09 > forward["total_s"]
    read = report_command(tmp_path, str(outcome.folder), "--full").stdout
    (line,) = lines_of(read, "Device time")
    assert line == "Device time: cuda (NVIDIA Fake), events; 18 spans measured"
    assert lines_of(read, "Device waited for input: ")
    assert lines_of(read, "forward_pass") == lines_of(outcome.stdout, "forward_pass")


def test_forked_child_calls_no_driver(tmp_path: Path) -> None:
    fork = """
    if not os.fork():
        step()
        raise SystemExit(0)
    assert os.wait()[1] == 0
"""
    outcome = run_without_torch(
        tmp_path, DEVICE + "for _ in range(10):\n    step()\n" + fork.replace("\n    ", "\n") + "step()\n"
    )
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert outcome.report["device"]["spans"] == 20


def test_second_run_of_a_process_has_its_own_device_time(tmp_path: Path) -> None:
    twice = """
for steps in (5, 9):
    start_training_profiling(log_every=1000)
    for _ in range(steps):
        step()
    print("spans", snapshot().device.spans <= 2 * steps - 2)
    stop_training_profiling()
"""
    outcome = run_without_torch(tmp_path, DEVICE + twice)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert lines_of(outcome.stdout, "spans") == ["spans True", "spans True"]
    folders = sorted((tmp_path / "runs").glob("2*"))
    devices = [json.loads((folder / "report.json").read_text())["device"] for folder in folders]
    assert [(device["name"], device["spans"]) for device in devices] == [("NVIDIA Fake", 8), ("NVIDIA Fake", 16)]
