"""Samples of lines of user code, in whole processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import printed
from tests.system.scripts import THREE_STEPS, report_command, run_forked, run_without_torch
from training_profiler.reports.sections import WITHOUT_START, table_label

SWIFT = {"RECTIFIED_FLOW_PROFILE_SAMPLE_HZ": "500"}  # enough samples in a run of one second
NO_MONITOR = {"RECTIFIED_FLOW_PROFILE_MONITOR_S": "0"}  # without the thread of the monitor
NETWORK = """
class Network:
    def forward(self, n):
        total = 0
        for i in range(n):
            total += i * i
        return total
"""
PLANTED = """
from training_profiler import *
from layers.network import Network

def augment(n):
    total = 0
    for i in range(n):
        total += i * i
    return total

def main():
    network = Network()
    start_training_profiling(log_every=1000)
    for step in range(40):  # half of them are settled, with enough samples on a busy machine, too
        with profile_section("forward_pass"):
            network.forward(200_000)
        augment(200_000)
        profile_step()

if __name__ == "__main__":
    main()
"""


TWO_RATES = """
import time
from training_profiler import *

def work(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))

start_training_profiling(log_every=1000)
work(1.5)
for step in range(100):
    with profile_section("data_loading"):
        work(0.01)
    with profile_section("forward_pass"):
        work(0.01)
    profile_step()
"""


def share_of(lines: list[dict[str, object]], file: str, function: str) -> float:
    return sum(float(str(line["share"])) for line in lines if (line["file"], line["function"]) == (file, function))


def test_stacks_have_the_shares_of_the_report_where_the_start_up_has_most_samples(tmp_path: Path, capsys: Any) -> None:
    outcome = run_without_torch(tmp_path, TWO_RATES, variables=SWIFT)
    assert (outcome.status, outcome.stderr) == (0, "")
    report, folder, wall_s = outcome.report, outcome.folder, outcome.report["wall_s"]
    shares = {
        table_label(name, labels=WITHOUT_START): (section["self_s"] - section["before_s"] - section["after_s"]) / wall_s
        for name, section in report["sections"].items()
        if section["share"]
    }
    apart = {
        f"{when} the {which} step": sum(each[f"{when}_s"] for each in report["sections"].values()) / wall_s
        for when, which in (("before", "first"), ("after", "last"))
    }
    assert apart["before the first step"] > 0.1
    shares, seen = {**shares, **apart}, dict.fromkeys([*shares, *apart], 0.0)
    for line in printed(capsys, "timeline", folder, "--format", "collapsed", "--output", "-").splitlines():
        stack, us = line.rsplit(" ", 1)
        seen[stack.split(";")[0]] += int(us) / 1e6 / wall_s
    assert seen == pytest.approx(shares, abs=0.02)


def test_slow_function_is_named_in_its_section_also_from_the_journal(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "network.py").write_text(NETWORK)
    outcome = run_without_torch(tmp_path, PLANTED, variables=SWIFT)
    assert (outcome.status, outcome.stderr) == (0, "")
    sections, lines = outcome.report["sections"], outcome.report["lines"]
    assert share_of(lines["other"], "script.py", "augment") > 0.9 * sections["other"]["share"]
    assert (
        share_of(lines["forward_pass"], "layers/network.py", "Network.forward")
        > 0.9 * sections["forward_pass"]["share"]
    )
    assert {line["line"] for line in lines["other"] if line["function"] == "augment"} <= {7, 8, 9}
    rows = outcome.stdout.split("Time Distribution:")[1].split("\n\n")[0]
    assert "    layers/network.py:" in rows
    assert "    script.py:" in rows
    (message,) = [finding["finding"] for finding in outcome.report["findings"] if finding["code"] == "unexplained"]
    assert " augment (" in message
    read = json.loads(report_command(tmp_path, str(outcome.folder), "--json").stdout)
    assert read["lines"] == outcome.report["lines"]
    assert "line sampler: " in report_command(tmp_path, str(outcome.folder), "--full").stdout


def test_python_code_that_holds_the_gil_is_sampled_beside_torch_code(tmp_path: Path) -> None:
    """With CPython's default switch interval of 5 ms hardly any sample would be in ``augment``."""
    outcome = run_forked(
        tmp_path,
        """
        from time import perf_counter
        import torch
        from training_profiler import *

        def augment(n):
            total = 0
            for i in range(n):
                total += i * i

        def multiply(a, n):
            for _ in range(n):
                a @ a

        torch.set_num_threads(1)
        a = torch.ones(256, 256)
        start_training_profiling(log_every=100_000)
        seconds = [0.0, 0.0]
        for step in range(500):
            times = [perf_counter()]
            augment(15_000); times.append(perf_counter())
            multiply(a, 4); times.append(perf_counter())
            seconds[0] += times[1] - times[0]
            seconds[1] += times[2] - times[1]
            profile_step()
        print(seconds[0] / sum(seconds))
        """,
        variables=SWIFT,
    )
    lines = outcome.report["lines"]["other"]
    seen = share_of(lines, "script.py", "augment"), share_of(lines, "script.py", "multiply")
    assert seen[0] / sum(seen) > float(outcome.printed.split()[0]) / 3


def test_disabled_sampler_starts_no_thread_and_prints_nothing(tmp_path: Path) -> None:
    script = "import sys, threading\n" + THREE_STEPS + "print(threading.active_count(), sys.getswitchinterval())\n"
    outcome = run_without_torch(tmp_path, script, variables=NO_MONITOR | {"RECTIFIED_FLOW_PROFILE_SAMPLE_HZ": "0"})
    assert outcome.printed.startswith("4 0.005\n")  # one thread writes files, one is for SIGTERM, one for hangs
    assert not [note for note in outcome.report["health"]["notes"] if note.startswith("line sampler")]
    assert outcome.report["lines"] == {}


def test_forked_child_has_no_sampler(tmp_path: Path) -> None:
    child = "print(threading.active_count(), sys.getswitchinterval(), flush=True); os._exit(0)"
    outcome = run_without_torch(
        tmp_path, f"import os, sys, threading\n{THREE_STEPS}if os.fork():\n    os.wait()\nelse:\n    {child}\n"
    )
    assert outcome.printed.startswith("1 0.005\n")
    assert outcome.summaries == 1
