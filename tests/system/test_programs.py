"""Other people's programs, unedited: each runs alone and under ``run``, and its own counts are the truth.

A program of ``tests/programs`` ends with a line ``TRUTH {...}`` of the counts that it kept itself: ``steps``, and the
count of each section that it can speak for. A list holds all counts that are right; ``a+b`` is the sum of two sections;
``batches of`` are those of each loader.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.system.scripts import ROOT, Outcome, environment, report_command

FOLDER = ROOT / "tests" / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
ARGUMENTS = {"main_is_main": ["--lr", "1e-3", "--", "a b", "--rest"]}
UNDER_TORCHRUN = {"process_collectives_torchrun", "process_ddp_torchrun", "process_fsdp2_torchrun"}
# Those about their process; the others may share one that has imported torch.
OWN_PROCESS = ("compile_", "data_workers_spawned", "exit_", "main_", "process_", "profiler_")
UNTRAINED = {"eval_without_training"}  # there may be no report where there was no training
CUT_OFF = {"exit_os_exit"}  # no exit handler runs; what is left is the journal
BLINDED = {"model_replaces_call_alone"}  # takes a seam away, which may then say that it is off
# Where something cannot be measured one line says so; these words are in it.
SAID = {
    "eval_without_training": "step|training",
    "exit_keyboard_interrupt_bare": "step",
    "model_replaces_call_alone": "__call__|forward",
    "optim_none": "step",
    "optim_none_raw_tensors": "step",
}
LIMIT_S = 120  # bounds a hang; none takes more than a few seconds on an idle machine
LOG_EVERY = 50  # steps between two lines of the journal, by default

COMPLAINT = re.compile(r"Traceback \(most recent call last\)|Warning: |Error\b|^\[[WEF]\d{4} |^Exception ")
# The place of a warning is the frame that called, which may be one of ours; times and addresses are always new.
ALWAYS_NEW = re.compile(r"^\S+:\d+: (?=\w*Warning: )|(?<=^\[[WEF])[\d :.]+|\b0x[0-9a-f]+")

# One of each kind in `make test`, which has to be quick; the others in `make test-programs`.
QUICK = {
    "autograd_checkpointing",
    "data_reads_ahead",
    "data_round_robin",
    "eval_no_grad_inside",
    "exit_keyboard_interrupt_bare",
    "hand_everything",
    "model_trainer_is_module_no_loader",
    "optim_accumulation",
    "optim_grad_scaler",
    "optim_none",
    "rl_ppo",
}


def marked(names: list[str]) -> list[Any]:
    """Return the names as parameters; those that are not quick carry the mark ``programs``."""
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.programs]) for name in names]


every_program = pytest.mark.parametrize("name", marked(PROGRAMS))
every_report = pytest.mark.parametrize("name", marked([name for name in PROGRAMS if name not in CUT_OFF | UNTRAINED]))


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


Run = Callable[[str], Pair]


class Alone:
    """A process that runs programs without the profiler, several times as fast as a new interpreter for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = start([sys.executable, str(FOLDER / "_alone.py")], ROOT, stdin=subprocess.PIPE, stderr=None)

    def run(self, name: str, cwd: Path) -> Outcome:
        """Run a program in ``cwd`` and return its outcome."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cwd.mkdir()
        with self._lock:
            print(json.dumps([str(cwd), *words_of(name)]), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
        return Outcome(status, *((cwd.parent / stream).read_text() for stream in ("stdout", "stderr")), cwd)

    def end(self) -> None:
        end(self._process)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Return a function that waits for a program's pair; all programs that were asked for run ahead, on all cores."""
    here = [item for item in request.session.items if item.path == request.path]
    asked_for = dict.fromkeys(item.callspec.params["name"] for item in here if hasattr(item, "callspec"))
    alone = Alone()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results: dict[str, tuple[Future[Outcome], Future[Outcome]]] = {}

        def submit(name: str) -> None:
            cwd = tmp_path_factory.mktemp(name)
            run_plain = run_as_command if name.startswith(OWN_PROCESS) else alone.run
            results[name] = (
                pool.submit(run_plain, name, cwd / "plain"),
                pool.submit(run_profiled, name, cwd / "profiled"),
            )

        def pair_of(name: str) -> Pair:
            if name not in results:
                submit(name)
            return Pair(*(result.result() for result in results[name]))

        for name in asked_for:
            submit(name)
        try:
            yield pair_of
        finally:
            pool.shutdown(cancel_futures=True)
            alone.end()


def run_profiled(name: str, cwd: Path) -> Outcome:
    """Run a program under the profiler."""
    launcher = ["torchrun", *torchrun_words()] if name in UNDER_TORCHRUN else []
    return run_command(["-m", "training_profiler", "run", *launcher, *words_of(name)], cwd)


def run_as_command(name: str, cwd: Path) -> Outcome:
    """Run a program without the profiler, in an interpreter of its own."""
    launcher = ["-m", "torch.distributed.run", *torchrun_words()] if name in UNDER_TORCHRUN else []
    return run_command([*launcher, *words_of(name)], cwd)


def words_of(name: str) -> list[str]:
    """Return the program's path and arguments."""
    return [str(FOLDER / f"{name}.py"), *ARGUMENTS.get(name, [])]


def torchrun_words() -> list[str]:
    """Return torchrun's arguments for two ranks, on a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return ["--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={probe.getsockname()[1]}"]


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
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # torchrun is this environment's
    return subprocess.Popen(
        words,
        cwd=cwd,
        env=environment(None, GLOO_SOCKET_IFNAME="lo", PATH=path),
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def end(process: "subprocess.Popen[str]") -> None:
    """Leave nothing behind, above all not of a program that hung."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def complaints(stderr: str) -> "Counter[str]":
    """Return the lines that complain, without what differs from run to run."""
    return Counter(ALWAYS_NEW.sub("", line) for line in stderr.splitlines() if COMPLAINT.search(line))


def counted(report: dict[str, Any], name: str) -> Any:
    """Return the steps, the count of a section, or of each loader; a section that never happened has no row."""
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


@every_program
def test_a_program_ends_as_it_does_alone(run: Run, name: str) -> None:
    pair = run(name)
    assert pair.profiled.status == pair.plain.status, pair.profiled.stderr
    if "Traceback" in pair.plain.stderr:
        traceback = pair.plain.stderr[pair.plain.stderr.index("Traceback") :]
        assert traceback in pair.profiled.stderr


@every_program
def test_all_lines_and_losses_of_a_program_are_printed_unchanged(run: Run, name: str) -> None:
    pair = run(name)
    wanted = pair.plain.stdout.splitlines()
    assert pair.truth
    assert unmatched(wanted, iter(pair.profiled.stdout.splitlines())) == []


@every_program
def test_no_traceback_or_warning_is_added(run: Run, name: str) -> None:
    pair = run(name)
    added = complaints(pair.profiled.stderr) - complaints(pair.plain.stderr)
    assert not added, pair.profiled.stderr


@every_program
def test_a_program_leaves_the_same_files_beside_the_run_folder(run: Run, name: str) -> None:
    pair = run(name)
    plain, profiled = ({path.name for path in outcome.cwd.iterdir()} for outcome in pair)
    assert profiled - {"runs"} == plain


@every_report
def test_counts_are_those_that_the_program_kept_itself(run: Run, name: str) -> None:
    pair = run(name)
    report, truth = pair.report, pair.truth
    found = {section: counted(report, section) for section in truth}
    right = {
        section: found[section] if isinstance(count, list) and found[section] in count else count
        for section, count in truth.items()
    }
    assert found == right


@every_report
def test_a_run_is_reported_once(run: Run, name: str) -> None:
    pair = run(name)
    assert pair.report
    assert pair.profiled.summaries == 1


@every_report
def test_shares_add_up_to_the_run(run: Run, name: str) -> None:
    report = run(name).report
    sections = report["sections"].values()
    assert sum(section["share"] or 0 for section in sections) == pytest.approx(1, abs=1e-6)
    assert sum(section["self_s"] for section in sections) == pytest.approx(report["wall_s"], abs=1e-6)


@every_report
def test_nothing_is_dropped_or_switched_off(run: Run, name: str) -> None:
    health = run(name).report["health"]
    assert health["dropped"] == 0
    assert health["disabled"] == [] or name in BLINDED


@pytest.mark.parametrize("name", marked(sorted(SAID)))
def test_what_could_not_be_recognised_is_said(run: Run, name: str) -> None:
    pair = run(name)
    lines = pair.profiled.stderr.splitlines()
    if name not in UNTRAINED:
        lines += [*pair.report["health"]["notes"], *pair.report["health"]["disabled"]]
    assert [line for line in lines if re.search(SAID[name], line, re.IGNORECASE)], lines


@pytest.mark.parametrize("name", sorted(CUT_OFF))
def test_the_journal_outlives_an_exit_that_runs_no_handler(run: Run, name: str) -> None:
    pair = run(name)
    (folder,) = (pair.profiled.cwd / "runs").iterdir()
    outcome = report_command(folder, str(folder), "--json")
    assert outcome.status == 0, outcome.stderr
    steps = pair.truth["steps"]
    assert steps - LOG_EVERY <= json.loads(outcome.stdout)["steps"] <= steps


def test_compile_time_is_told_apart_as_warm_up(run: Run) -> None:
    assert run("compile_models").report["step_time"]["warmup_count"] >= 1
