"""Programs that were not edited: each runs alone and under ``run``, and its own counts are the truth.

A program of ``tests/programs`` ends with a line ``TRUTH {...}`` of the counts that it kept itself: ``steps``, and the
count of each section that it can vouch for. A list holds all correct counts; ``a+b`` is the sum of two sections;
``batches of`` holds the batches of each loader.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.ports import free_port
from tests.system.launching import start_in_fork, start_ranks
from tests.system.scripts import ROOT, Outcome, environment, finish, report_command

FOLDER = ROOT / "tests" / "programs"
HELPERS = FOLDER / "helpers"  # what the programs import from each other
ARGUMENTS = {
    "main/is_main": ["--lr", "1e-3", "--", "a b", "--rest"],
    "process/waits_for_child": ["spawn"],
}
VARIANTS = {  # of another program, by an argument
    "data/module_transforms_workers": ["data/module_transforms", "2"],
    "data/workers_persistent": ["data/workers", "persistent"],
    "model/replaces_call_alone": ["model/replaces_call", "alone"],
    "optim/grad_scaler_fused": ["optim/grad_scaler", "fused"],
    "process/waits_for_forked_child": ["process/waits_for_child", "fork"],
}
FILES = [path.relative_to(FOLDER).with_suffix("") for path in FOLDER.glob("*/*.py") if path.parent != HELPERS]
PROGRAMS = sorted([*map(Path.as_posix, FILES), *VARIANTS])
UNDER_TORCHRUN = {"process/ddp_torchrun"}
RANKS = {"process/collectives", "process/fsdp2"}  # two, with the variables that torchrun sets
# Programs about their own process have one; these have one under the profiler, which then sees torch being imported.
# The rest run in forks of a process with torch, as do those that alone end without a traceback.
OWN_PROCESS = ("exit/", "main/", *UNDER_TORCHRUN)
STARTED = ("compile/models", "process/launcher", "process/os_fork", "process/spawned_ranks", "process/waits_for_child")
FORKED_ALONE = {"exit/ctrl_c", "exit/os_exit", "exit/sigterm", "exit/status", *UNDER_TORCHRUN}
UNTRAINED = {"eval/without_training"}  # a program without a training may leave no report
CUT_OFF = {"exit/os_exit"}  # exit handlers do not run; only the journal remains
PATCH_REPLACED = {"model/replaces_call_alone"}  # replaces a patch, which may then be reported as disabled
# One line names what could not be measured; it matches this pattern.
UNMEASURED = {
    "eval/without_training": "step|training",
    "exit/keyboard_interrupt_bare": "step",
    "model/replaces_call_alone": "__call__|forward",
    "optim/none": "step",
    "optim/none_raw_tensors": "step",
}
LIMIT_S = 250  # ends a program that hangs; each takes a few seconds on an idle machine
LOG_EVERY = 50  # steps between two lines of the journal, by default

COMPLAINT = re.compile(r"Traceback \(most recent call last\)|Warning: |Error\b|^\[[WEF]\d{4} |^Exception ")
# A warning names the calling frame, which may be one of ours; times and addresses differ in each run.
ALWAYS_NEW = re.compile(r"^\S+:\d+: (?=\w*Warning: )|(?<=^\[[WEF])[\d :.]+|\b0x[0-9a-f]+")

# One program of each kind is in `make test`, which has to be quick; the others are in `make test-programs`.
QUICK = {
    "autograd/checkpointing",
    "data/reads_ahead",
    "data/round_robin",
    "eval/no_grad_inside",
    "exit/keyboard_interrupt_bare",
    "manual/everything",
    "model/trainer_is_module_no_loader",
    "optim/accumulation",
    "optim/grad_scaler",
    "optim/none",
    "rl/ppo",
}


class Pair(NamedTuple):
    """What one program did without and with the profiler."""

    plain: Outcome
    profiled: Outcome

    @property
    def truth(self) -> dict[str, Any]:
        """The counts that the program kept itself."""
        (line,) = [line for line in self.plain.stdout.splitlines() if line.startswith("TRUTH ")]
        return dict(json.loads(line.removeprefix("TRUTH ")))

    @property
    def report(self) -> dict[str, Any]:
        """The one report of the profiled run, whichever of its processes trained."""
        (path,) = self.profiled.cwd.glob("runs/*/report.json")
        return dict(json.loads(path.read_text()))


def pair_of(name: str, cwd: Path) -> Pair:
    """Run a program without and with the profiler."""
    is_own = name.startswith(OWN_PROCESS)
    plain = run_as_command if is_own and name not in FORKED_ALONE else run_forked
    profiled = run_profiled if is_own or name in STARTED else run_forked_profiled
    return Pair(plain(name, cwd / "plain"), profiled(name, cwd / "profiled"))


def run_profiled(name: str, cwd: Path) -> Outcome:
    """Run a program under the profiler."""
    address = ["--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    launcher = ["torchrun", *address] if name in UNDER_TORCHRUN else []
    return run_command(["-m", "training_profiler", "run", *launcher, *words_of(name)], cwd)


def run_forked(name: str, cwd: Path, is_profiled: bool = False) -> Outcome:
    """Run a program in a fork of a process that has imported torch."""
    cwd.mkdir()
    if name in RANKS | UNDER_TORCHRUN:
        ranks = [finish(rank, cwd) for rank in start_ranks(cwd, words_of(name), 2, variables(), is_profiled)]
        first, second = ranks
        assert second.status == first.status, second.stderr
        return first._replace(stdout=first.stdout + second.stdout, stderr=first.stderr + second.stderr)
    return finish(start_in_fork(cwd, words_of(name), variables(), is_profiled), cwd)


def run_forked_profiled(name: str, cwd: Path) -> Outcome:
    """Run a program under the profiler in such a fork."""
    return run_forked(name, cwd, is_profiled=True)


def run_as_command(name: str, cwd: Path) -> Outcome:
    """Run a program without the profiler, in an interpreter of its own."""
    return run_command(words_of(name), cwd)


def words_of(name: str) -> list[str]:
    """Return the program's path and arguments."""
    program, *words = VARIANTS.get(name, [name, *ARGUMENTS.get(name, [])])
    return [str(FOLDER / f"{program}.py"), *words]


def run_command(words: list[str], cwd: Path) -> Outcome:
    """Run Python with ``words`` in ``cwd``."""
    cwd.mkdir()
    process = start([sys.executable, *words], cwd, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    finally:
        end(process)
    return Outcome(process.returncode, stdout, stderr, cwd)


def start(words: list[str], cwd: Path, stdin: int, stderr: int | None) -> "subprocess.Popen[str]":
    """Start a command in a process group of its own."""
    return subprocess.Popen(
        words,
        cwd=cwd,
        env=variables(),
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def variables() -> dict[str, str]:
    """Return the environment of a program without the profiler."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # torchrun of this environment
    return environment(None, GLOO_SOCKET_IFNAME="lo", PATH=path, PYTHONPATH=f"{ROOT}{os.pathsep}{HELPERS}")


def end(process: "subprocess.Popen[str]") -> None:
    """Kill the process group: a program that hung has children as well."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def complaints(stderr: str) -> "Counter[str]":
    """Return the warnings and errors, without the parts that differ from run to run."""
    return Counter(ALWAYS_NEW.sub("", line) for line in stderr.splitlines() if COMPLAINT.search(line))


def counted(report: dict[str, Any], name: str) -> Any:
    """Return the steps, the count of a section, or the batches of each loader; a section that never ran counts 0."""
    if name == "batches of":
        return {loader["name"]: loader["batches"] for loader in report["loaders"]}
    if name == "steps":
        return int(report["steps"])
    return sum(int(report["sections"].get(section, {}).get("count", 0)) for section in name.split("+"))


def unmatched(wanted: list[str], lines: Iterator[str]) -> list[str]:
    """Return the wanted lines that do not occur among ``lines`` in their order."""
    for i, line in enumerate(wanted):
        if line not in lines:  # reads on up to the line
            return wanted[i:]
    return []


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.programs) for name in PROGRAMS]
)
def test_program_is_as_without_the_profiler_and_the_report_has_its_own_counts(tmp_path: Path, name: str) -> None:
    pair = pair_of(name, tmp_path)
    plain, profiled = pair
    assert profiled.status == plain.status, profiled.stderr
    assert "Traceback" not in plain.stderr or plain.stderr[plain.stderr.index("Traceback") :] in profiled.stderr
    assert pair.truth
    assert unmatched(plain.stdout.splitlines(), iter(profiled.stdout.splitlines())) == []
    assert not complaints(profiled.stderr) - complaints(plain.stderr), profiled.stderr
    assert {path.name for path in profiled.cwd.iterdir()} - {"runs"} == {path.name for path in plain.cwd.iterdir()}
    said = profiled.stderr.splitlines()
    if name in CUT_OFF:
        assert_journal_has_the_steps(pair)
    elif name not in UNTRAINED:
        assert_report_has_the_counts(pair)
        health = pair.report["health"]
        said += [*health["notes"], *health["disabled"]]
        assert health["dropped"] == 0
        assert health["disabled"] == [] or name in PATCH_REPLACED
    if name in UNMEASURED:
        assert [line for line in said if re.search(UNMEASURED[name], line, re.IGNORECASE)], said
    if name == "compile/models":
        assert pair.report["step_time"]["warmup_count"] >= 1


def assert_report_has_the_counts(pair: Pair) -> None:
    """Check that the run is reported once, with the program's own counts and shares that add up."""
    report, truth = pair.report, pair.truth
    counts = {section: counted(report, section) for section in truth}
    expected = {
        section: counts[section] if isinstance(count, list) and counts[section] in count else count
        for section, count in truth.items()
    }
    assert counts == expected
    assert pair.profiled.summaries == 1
    sections = report["sections"].values()
    assert sum(section["share"] or 0 for section in sections) == pytest.approx(1, abs=1e-6)
    assert sum(section["self_s"] for section in sections) == pytest.approx(report["wall_s"], abs=1e-6)


def assert_journal_has_the_steps(pair: Pair) -> None:
    """Check that the journal outlives an exit without handlers."""
    (folder,) = (pair.profiled.cwd / "runs").glob("2*")
    outcome = report_command(folder, str(folder), "--json")
    assert outcome.status == 0, outcome.stderr
    steps = pair.truth["steps"]
    assert steps - LOG_EVERY <= json.loads(outcome.stdout)["steps"] <= steps
