"""Capture windows in real trainings: the traces they write, and trainings that they leave unchanged."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.system.scripts import Outcome, command, finish, run_forked, small_files, start_forked, wait_for
from tests.system.test_many_ranks import train_in_forks

# A training with manual steps; a test passes code for the middle of a step as ``each``.
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
def alone(work, *arguments):
    thread = threading.Thread(target=work, args=arguments)
    thread.start(); thread.join()
def names(prof):
    return sorted({event.key for event in prof.key_averages()})
"""
# Time passes only in ``advance``, so the length of a step does not depend on the machine. The modules of the profiler
# that the fork has are imported again: they have the real clock.
FAKE_CLOCK = """
import sys, threading, time
for name in [name for name in sys.modules if name.partition(".")[0] == "training_profiler"]:
    del sys.modules[name]
now_ns, moving = time.perf_counter_ns(), threading.RLock()  # threads of the profiler read it, too
def fake_clock():
    global now_ns
    with moving:
        now_ns += 1000
        return now_ns
def advance(seconds):
    global now_ns
    with moving:
        now_ns += int(seconds * 1e9)
time.perf_counter_ns = fake_clock
"""
PLAN = "RECTIFIED_FLOW_PROFILE_CAPTURE"


def trained(cwd: Path, text: str, plan: str = "steps=5-8", before: str = "", status: int = 0) -> Outcome:
    """Run the training with a plan of captures, ``before`` and ``text`` in one script; check how it ends."""
    outcome = run_forked(cwd, before + TRAINING + text, variables={PLAN: plan})
    assert outcome.status == status, outcome.stderr
    return outcome


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


def health_notes(outcome: Outcome) -> str:
    return "\n".join(outcome.report["health"]["notes"])


def test_operators_of_a_trace_lie_in_the_sections_that_called_them(tmp_path):
    outcome = trained(tmp_path, "start_training_profiling(); train(30)")
    assert captures(outcome) == ["step5-8-rank0.pt.trace.json.gz"]
    found = trace(outcome, "step5-8-rank0.pt.trace.json.gz")
    steps = annotations(found, "ProfilerStep#")
    assert [event["name"] for event in steps] == [f"ProfilerStep#{number}" for number in (5, 6, 7, 8)]
    for section, operator in (("inner", "aten::sinh"), ("forward_pass", "aten::addmm"), ("backward_pass", "aten::mm")):
        spans, calls = annotations(found, section), operators(found, operator)
        assert len(spans) == 4
        assert len(calls) >= 4
        assert all(sum(lies_in(call, span) for span in spans) == 1 for call in calls)
    assert outcome.stdout.count("captured steps 5-8 in ") == 2  # when it is written, and under Profiler health
    assert "next: training-profiler trace" in health_notes(outcome)
    assert outcome.report["health"]["disabled"] == []
    (line,) = command(tmp_path, "trace", str(outcome.folder / "captures"), "--json").stdout.splitlines()
    assert [row["section"] for row in json.loads(line)["operators"] if row["name"] == "aten::sinh"] == ["inner"]


# Two profilers in one program. Each case has its own process: torch crashes if both record at once. ``{end}`` is the
# end of one that records the steps.
END = "prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 20)"
OTHER = """def other():
    with theirs() as prof: torch.randn(8, 8).mul(2){waits}
    prof.export_chrome_trace('theirs.json'); print('aten::mul' in names(prof))
"""
BY_SCHEDULE = """with theirs(schedule=schedule({cycle}, repeat={repeat}){more}) as prof:
    for _ in range({steps}): step(); prof.step()
{end}"""
AROUND = OTHER.format(waits="; go.set(); done.wait()")
THEIRS = {
    "theirs around ours": "with theirs() as prof: train(30)\n{end}",
    "theirs warms up and waits by a schedule": BY_SCHEDULE.format(
        cycle="wait=1, warmup=20, active=2", repeat=1, more="", steps=40, end=END
    ),
    "theirs gathers events over the cycles of a schedule": BY_SCHEDULE.format(
        cycle="wait=0, warmup=8, active=2", repeat=2, more=", acc_events=True", steps=30, end=END
    ),
    "theirs begins in ours and ends in it": "def each():\n"
    "    if len(losses) == 5:\n"
    "        with theirs() as prof: net(torch.randn(8, 16))\n"
    "        prof.export_chrome_trace('theirs.json'); print(len(names(prof)) > 3)\n"
    "train(30, each)",
    "theirs begins in ours and ends after": "train(5); prof = theirs(); prof.start(); train(10); prof.stop(); "
    "train(10)\n{end}",
    "theirs begins to warm up in ours": BY_SCHEDULE.format(
        cycle="wait=6, warmup=1, active=2", repeat=1, more="", steps=30, end=END
    ),
    "theirs begins before and ends in the steps of ours": "train(2); prof = theirs(); prof.start(); train(4); "
    "prof.stop(); train(20)\n{end}",
    "theirs is over before ours": "with theirs() as prof: train(3)\ntrain(30); {end}",
    "theirs after ours": "train(12)\nwith theirs() as prof: train(3)\ntrain(30); {end}",
    "theirs is torch.autograd.profiler, around": "with torch.autograd.profiler.profile() as prof: train(30)\n"
    "print(len(names(prof)) > 20)",
    "theirs is torch.autograd.profiler, in ours": "train(5)\nwith torch.autograd.profiler.profile() as prof: train(3)\n"
    "train(20); print(len(names(prof)) > 20)",
    "theirs on another thread, in ours": OTHER.format(waits="; time.sleep(0.05)")
    + "train(5); thread = threading.Thread(target=other); thread.start(); train(300); thread.join(); train(3)",
    "theirs on another thread that the training waits for": OTHER.format(waits="") + "def each():\n"
    "    if len(losses) == 5: thread = threading.Thread(target=other); thread.start(); thread.join()\n"
    "train(30, each)",
    "theirs on another thread, around": f"go, done = threading.Event(), threading.Event()\n{AROUND}"
    "thread = threading.Thread(target=other); thread.start(); go.wait(); train(30); done.set(); thread.join()",
    "theirs is cProfile, which does not conflict": "import cProfile, pstats\n"
    "prof = cProfile.Profile(); prof.enable(); train(30); prof.disable()\nprint(len(pstats.Stats(prof).stats) > 20)",
}
PLANS = {
    "theirs gathers events over the cycles of a schedule": "steps=13-15",
    "theirs on another thread, in ours": "steps=5-50",
}
BESIDE = ("theirs is over before ours", "theirs after ours", "theirs is cProfile, which does not conflict")


@pytest.mark.programs
@pytest.mark.parametrize("how", THEIRS)
def test_profiler_of_the_program_is_unaffected(tmp_path, how):
    text, plan = THEIRS[how].replace("{end}", END), PLANS.get(how, "steps=5-8")
    files = ["step5-8-rank0.pt.trace.json.gz"] * (how in BESIDE)
    # On a clock of its own the run is over before a window that gave way is due again, a second later.
    outcome = trained(tmp_path, "start_training_profiling()\n" + text, plan, before=FAKE_CLOCK)
    assert "True\n" in outcome.stdout
    assert captures(outcome) == files
    assert outcome.report["health"]["disabled"] == []
    if not files:
        assert "profiler of the program's own" in health_notes(outcome)


def leftovers(outcome: Outcome) -> list[str]:
    return [name for name in captures(outcome) if not name.endswith(".pt.trace.json.gz")]


@pytest.mark.programs
@pytest.mark.parametrize("plan", ["every=12,length=2", "outlier,length=2", "steps=2-40"])
def test_losses_are_bitwise_equal(tmp_path, plan):
    text = "train(60, lambda: time.sleep(0.1) if len(losses) == 30 else None)\nprint(losses)"
    (tmp_path / "plain").mkdir()
    plain = run_forked(tmp_path / "plain", TRAINING + text, profile=None)
    outcome = trained(tmp_path, "start_training_profiling(log_every=1000)\n" + text, plan)
    assert plain.stdout in outcome.stdout
    assert len(captures(outcome)) >= 1
    assert leftovers(outcome) == []


def test_windows_open_every_n_steps_until_the_budget_is_used(tmp_path):
    text = (
        "import glob\n"
        "def each():\n"  # the first trace is written before the second window
        "    while len(losses) == 35 and not glob.glob('runs/*/captures/step20-*.gz'): time.sleep(0.01)\n"
        "start_training_profiling(log_every=1000); train(100, each)"
    )
    outcome = trained(tmp_path, text, "every=20,length=2,windows=2")
    assert captures(outcome) == ["step20-21-rank0.pt.trace.json.gz", "step40-41-rank0.pt.trace.json.gz"]
    assert "no further capture windows: 2 were opened (windows=)" in health_notes(outcome)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("each", "limit", "said_so"),
    [
        ("for _ in range(100): time.sleep(0.01)", "seconds=0.3", "after 0.3 s"),
        ("x = [bytes(10**8) for _ in range(4)]; x = [bytearray(b'1') * 10**8 for _ in range(4)]; time.sleep(0.6)",
         "memory_gib=0.05", "when memory had grown by 0.05 GiB"),
    ],
)  # fmt: skip
def test_window_ends_in_the_step_that_reaches_a_limit(tmp_path, each, limit, said_so):
    text = f"def each():\n    if len(losses) == 5:\n        {each}\nstart_training_profiling(); train(20, each)"
    outcome = trained(tmp_path, text, f"steps=5-9,{limit}")
    assert captures(outcome) == ["step5-5-rank0.pt.trace.json.gz"]
    assert re.search(f"captured step 5 in [0-9.]+ s, ended {said_so}", health_notes(outcome))


@pytest.mark.programs
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("import glob; open(glob.glob('runs/*')[0] + '/captures', 'w')", "File exists"),
        (small_files(60_000), "is the disk full"),
    ],
)
def test_unwritable_trace_is_reported_and_the_training_goes_on(tmp_path, spoil, why):
    outcome = trained(tmp_path, f"start_training_profiling(); train(3); {spoil}; train(37); print('done')")
    assert "done\n" in outcome.stdout
    assert captures(outcome) == []
    assert "capture of steps 5-8 failed, the training goes on" in outcome.stdout
    assert why in outcome.stdout


@pytest.mark.programs
@pytest.mark.parametrize(
    "ending",
    [
        "raise ValueError('planted')",
        "sys.exit(3)",
        "os.kill(os.getpid(), signal.SIGINT)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os._exit(5)",
        "threading.Thread(target=stop_training_profiling).start(); time.sleep(0.2); sys.exit(4)",
    ],
)
def test_run_that_ends_in_a_window_keeps_its_exit_status(tmp_path, ending):
    text = f"def each():\n    if len(losses) == 6: {ending}\nstart_training_profiling(); train(20, each)"
    (tmp_path / "plain").mkdir()
    plain = run_forked(tmp_path / "plain", TRAINING + text, profile=None)
    assert plain.status != 0
    outcome = trained(tmp_path, text, status=plain.status)
    assert leftovers(outcome) == []
    for name in captures(outcome):
        assert trace(outcome, name)["traceEvents"]


def test_steps_before_the_end_of_training_are_kept(tmp_path):
    outcome = trained(tmp_path, "start_training_profiling(); train(7)", "steps=5-20")
    assert captures(outcome) == ["step5-7-rank0.pt.trace.json.gz"]
    assert len(annotations(trace(outcome, captures(outcome)[0]), "forward_pass")) == 3


@pytest.mark.programs
def test_exception_caught_in_a_window_changes_nothing(tmp_path):
    text = (
        "def each():\n    if len(losses) == 6: raise ValueError\n"
        "start_training_profiling()\n"
        "try: train(20, each)\nexcept ValueError: train(20)"
    )
    outcome = trained(tmp_path, text)
    assert captures(outcome) == ["step5-8-rank0.pt.trace.json.gz"]


@pytest.mark.programs
@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
def test_child_and_workers_forked_in_a_window_end_normally(tmp_path, ending):
    text = (
        "def each():\n"
        "    if len(losses) != 5: return\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        net(torch.randn(8, 16))\n"
        "        with theirs() as prof: torch.randn(8, 8).mul(2)\n"
        "        assert 'aten::mul' in names(prof)\n"
        f"        {ending}\n"
        "    print('child', os.waitpid(pid, 0)[1])\n"
        "    loader = torch.utils.data.DataLoader(torch.arange(8.), batch_size=4, num_workers=2)\n"
        "    print([batch.tolist() for batch in loader])\n"
        "start_training_profiling(); train(20, each)"
    )
    outcome = trained(tmp_path, text)
    assert "child 0\n[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]\n" in outcome.stdout
    assert captures(outcome) == ["step5-8-rank0.pt.trace.json.gz"]


@pytest.mark.programs
def test_steps_inside_a_backward_pass_open_no_window(tmp_path):
    text = (
        "start_training_profiling()\n"
        "for _ in range(20):\n"
        "    loss = net(torch.randn(8, 16)).square().mean()\n"
        "    loss.register_hook(lambda gradient: profile_step())\n"
        "    loss.backward()\n"
    )
    outcome = trained(tmp_path, text)
    assert captures(outcome) == []
    assert "within a backward pass" in health_notes(outcome)


def test_window_opens_on_request(tmp_path):
    text = (
        "start_training_profiling(log_every=10**9); train(20); print('ready', flush=True)\n"
        "import glob\n"
        "while not glob.glob('runs/*/captures/*.gz'): step(lambda: time.sleep(0.005))\n"
    )
    process = start_forked(tmp_path, TRAINING + text)
    read = wait_for(process, "ready")
    (folder,) = (tmp_path / "runs").glob("2*")
    asked = command(tmp_path, "capture", str(folder), "--steps", "2")
    outcome = finish(process, tmp_path, read)
    assert (asked.status, asked.stderr) == (0, "")
    assert asked.stdout.startswith("Requested: rank 0 records 2 steps")
    assert outcome.status == 0, outcome.stderr
    (name,) = captures(outcome)
    assert len(annotations(trace(outcome, name), "ProfilerStep#")) == 2
    again = command(tmp_path, "capture", str(folder))
    assert again.status == 2
    assert "is no longer running" in again.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "is neither a folder nor the name of a run"),
        (["."], "no journal"),
        ([".", "--steps", "0"], "number of steps"),
    ],
)
def test_invalid_request_ends_with_status_2_and_the_reason(tmp_path, words, why):
    asked = command(tmp_path, "capture", *words)
    assert asked.status == 2
    assert why in asked.stderr


@pytest.mark.programs
def test_every_rank_writes_its_own_file(tmp_path):
    outcome = train_in_forks(tmp_path, "--steps", "30", **{PLAN: "steps=5-8"})
    assert captures(outcome) == [f"step5-8-rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    assert [trace(outcome, name)["distributedInfo"]["rank"] for name in captures(outcome)] == [0, 1]
