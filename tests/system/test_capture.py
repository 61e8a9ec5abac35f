"""Windows of deep capture in real trainings: what they write, and that they hurt none, however they are nested."""

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .scripts import Outcome, environment, finish, run, start, wait_for

# A training whose steps end by hand; ``each`` is what a test does in the middle of a step.
TRAINING = """
import os, signal, sys, threading, time
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from training_profiler import *
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
optimizer = torch.optim.AdamW(net.parameters())
losses = []
def theirs(**options):
    return profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, **options)
def step(each=None):
    with profile_section("forward_pass"):
        with profile_section("inner"):
            x = torch.randn(8, 16).sinh()
        loss = net(x).square().mean()
    if each is not None:
        each()
    with profile_section("backward_pass"):
        loss.backward()
    with profile_section("optimizer_step"):
        optimizer.step(); optimizer.zero_grad()
    losses.append(loss.item())
    profile_step()
def train(count, each=None):
    for _ in range(count): step(each)
def names(prof):
    return sorted({event.key for event in prof.key_averages()})
"""
PLAN = "RECTIFIED_FLOW_PROFILE_CAPTURE"


def trained(cwd: Path, text: str, plan: str = "steps=5-8", **options: Any) -> Outcome:
    return run(cwd, TRAINING + text, variables={PLAN: plan}, **options)


def captures(outcome: Outcome) -> list[str]:
    folder = outcome.folder / "captures"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def trace(outcome: Outcome, name: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress((outcome.folder / "captures" / name).read_bytes())))


def annotations(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [
        event
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith(name)
    ]


def operators(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op" and event["name"] == name]


def lies_in(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(
        inner["tid"] == outer["tid"]
        and outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    )


def said(outcome: Outcome) -> str:
    return "\n".join(outcome.report["health"]["notes"])


def test_a_window_is_a_trace_in_which_operators_lie_in_the_sections_that_called_them(tmp_path):
    outcome = trained(tmp_path, "start_training_profiling(); train(30)")
    assert outcome.status == 0, outcome.stderr
    assert captures(outcome) == ["step5-8-rank0.pt.trace.json.gz"]
    found = trace(outcome, "step5-8-rank0.pt.trace.json.gz")
    steps = annotations(found, "ProfilerStep#")
    assert [event["name"] for event in steps] == [f"ProfilerStep#{number}" for number in (5, 6, 7, 8)]
    for section, operator in (("inner", "aten::sinh"), ("forward_pass", "aten::addmm"), ("backward_pass", "aten::mm")):
        spans, calls = annotations(found, section), operators(found, operator)
        assert len(spans) == 4
        assert len(calls) >= 4
        assert all(sum(lies_in(call, span) for span in spans) == 1 for call in calls)
    assert outcome.stdout.count("captured steps 5-8, ") == 2  # at once, and in the health lines
    assert "next: training-profiler trace" in said(outcome)
    assert outcome.report["health"]["disabled"] == []


def test_the_analysis_of_traces_maps_operators_to_sections(tmp_path):
    outcome = trained(tmp_path, "start_training_profiling(); train(30)")
    command = [sys.executable, "-m", "training_profiler", "trace", str(outcome.folder / "captures")]
    told = subprocess.run(
        [*command, "--view", "operators"], capture_output=True, text=True, env=environment(None), cwd=tmp_path
    )
    assert told.returncode == 0, told.stderr
    (row,) = [line for line in told.stdout.splitlines() if line.startswith("aten::sinh ")][:1]
    assert "inner" in row
    assert "ProfilerStep#5" in subprocess.run(command, capture_output=True, text=True, env=environment(None)).stdout


# How two profilers may meet; each by the exit status of a process, for where they do the process crashes.
THEIRS: dict[str, tuple[str, str, list[str]]] = {
    "theirs around ours": (
        "with theirs() as prof: train(30)\nprof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=5-8",
        [],
    ),
    "theirs warms up and waits by a schedule": (
        "with theirs(schedule=schedule(wait=1, warmup=20, active=2, repeat=1)) as prof:\n"
        "    for _ in range(40): step(); prof.step()\n"
        "prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=5-8",
        [],
    ),
    "theirs gathers events over the cycles of a schedule": (
        "with theirs(schedule=schedule(wait=0, warmup=8, active=2, repeat=2), acc_events=True) as prof:\n"
        "    for _ in range(30): step(); prof.step()\n"
        "prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=13-15",
        [],
    ),
    "theirs begins in ours and ends in it": (
        "def each():\n"
        "    if len(losses) == 5:\n"
        "        with theirs() as prof: net(torch.randn(8, 16))\n"
        "        prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 3)\n"
        "train(30, each)",
        "steps=5-8",
        [],
    ),
    "theirs begins in ours and ends after": (
        "train(5); prof = theirs(); prof.start(); train(10); prof.stop(); train(10)\n"
        "prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=5-8",
        [],
    ),
    "theirs begins to warm up in ours": (
        "with theirs(schedule=schedule(wait=6, warmup=1, active=2, repeat=1)) as prof:\n"
        "    for _ in range(30): step(); prof.step()\n"
        "prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=5-8",
        [],
    ),
    "theirs begins before and ends in the steps of ours": (
        "train(2); prof = theirs(); prof.start(); train(4); prof.stop(); train(20)\n"
        "prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=5-8",
        [],
    ),
    "theirs is over before ours": (
        "with theirs() as prof: train(3)\n"
        "train(30); prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=5-8",
        ["step5-8-rank0.pt.trace.json.gz"],
    ),
    "theirs after ours": (
        "train(12)\nwith theirs() as prof: train(3)\n"
        "train(30); prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)",
        "steps=5-8",
        ["step5-8-rank0.pt.trace.json.gz"],
    ),
    "theirs is torch.autograd.profiler, around": (
        "with torch.autograd.profiler.profile() as prof: train(30)\nprint(len(names(prof)) > 20)",
        "steps=5-8",
        [],
    ),
    "theirs is torch.autograd.profiler, in ours": (
        "train(5)\nwith torch.autograd.profiler.profile() as prof: train(3)\ntrain(20); print(len(names(prof)) > 20)",
        "steps=5-8",
        [],
    ),
    "theirs on another thread, in ours": (
        "def other():\n"
        "    with theirs() as prof: torch.randn(8, 8).mul(2); time.sleep(0.05)\n"
        "    prof.export_chrome_trace('theirs.json'); print('aten::mul' in names(prof))\n"
        "train(5); thread = threading.Thread(target=other); thread.start(); train(300); thread.join(); train(3)",
        "steps=5-50",
        [],
    ),
    "theirs on another thread that the training waits for": (
        "def other():\n"
        "    with theirs() as prof: torch.randn(8, 8).mul(2)\n"
        "    prof.export_chrome_trace('theirs.json'); print('aten::mul' in names(prof))\n"
        "def each():\n"
        "    if len(losses) == 5: thread = threading.Thread(target=other); thread.start(); thread.join()\n"
        "train(30, each)",
        "steps=5-8",
        [],
    ),
    "theirs on another thread, around": (
        "go, done = threading.Event(), threading.Event()\n"
        "def other():\n"
        "    with theirs() as prof: torch.randn(8, 8).mul(2); go.set(); done.wait()\n"
        "    prof.export_chrome_trace('theirs.json'); print('aten::mul' in names(prof))\n"
        "thread = threading.Thread(target=other); thread.start(); go.wait(); train(30); done.set(); thread.join()",
        "steps=5-8",
        [],
    ),
    "theirs is Python's own, which is no matter": (
        "import cProfile, pstats\nprof = cProfile.Profile(); prof.enable(); train(30); prof.disable()\n"
        "print(len(pstats.Stats(prof).stats) > 20)",
        "steps=5-8",
        ["step5-8-rank0.pt.trace.json.gz"],
    ),
}


@pytest.mark.parametrize("how", THEIRS)
def test_a_profiler_of_the_programs_own_is_never_disturbed(tmp_path, how):
    text, plan, files = THEIRS[how]
    plain = run(tmp_path / "plain", TRAINING + text, profile=None) if (tmp_path / "plain").mkdir() is None else None
    outcome = trained(tmp_path, "start_training_profiling()\n" + text + "\nprint(losses[-1])", plan)
    assert plain is not None
    assert (plain.status, plain.stdout.split()) == (0, ["True"])
    assert outcome.status == 0, outcome.stderr
    assert "True\n" in outcome.stdout
    assert captures(outcome) == files
    assert outcome.report["health"]["disabled"] == []
    if not files:
        assert "profiler of the program's own" in said(outcome)
