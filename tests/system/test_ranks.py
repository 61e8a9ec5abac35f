"""Process groups: every rank is reported, whichever ends first or hangs, and the program is unchanged."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.system.launching import Ended
from tests.system.scripts import environment, fork_server
from training_profiler.storage.stack_files import read_stacks

TIMEOUT_S = 240  # ends processes that hang; two that import torch on a busy machine take 20 s
LONG_S = 100  # no wait of ours comes near it, even on a busy machine; a wait without a limit exceeds it
# Rank 0 writes the messages behind its last stats to a file for the test.
SPY = """
import json, os, sys, time
import training_profiler.ranks.exchange as exchange
def spy(summaries, world_size, *, original=exchange.all_ranks_stats, **rest):
    with open("received.json", "w") as file:
        json.dump({s.who.rank: [s.steps, s.is_final, s.ended_by, list(s.inside)] for s in summaries}, file)
    return original(summaries, world_size, **rest)
exchange.all_ranks_stats = spy
"""
BEGIN = """
from training_profiler import *
import torch
import torch.distributed as dist
start_training_profiling(sample_hz=0, monitor_s=0)
def train(steps, each=lambda step: None):
    for step in range(steps):
        each(step)
        with profile_section("synchronization"):
            dist.all_reduce(torch.ones(1))
        profile_step()
"""
GROUP = """
method = os.environ.get("INIT", "env://")
dist.init_process_group("gloo", init_method=method, rank=int(os.environ["RANK"]), world_size=2)
rank = dist.get_rank()
"""


class Group:
    """Two processes, started without torchrun's agent, which have imported torch before."""

    def __init__(self, cwd: Path, text: str, has_group: bool = True, **variables: str) -> None:
        script = cwd / "script.py"
        script.write_text(SPY + BEGIN + GROUP * has_group + textwrap.dedent(text))
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", **variables}
        self.cwd = cwd
        self.processes = [
            fork_server().start([str(script)], cwd, environment(**variables, RANK=str(rank))) for rank in range(2)
        ]

    def wait_for(self, rank: int, line: str) -> None:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        while (printed := stdout.readline()) != line + "\n":
            assert printed, f"rank {rank} ended before it printed {line!r}"

    def end(self, *ranks: int) -> list[Ended]:
        """Wait for these ranks, or all; the others are killed."""
        ended = []
        try:
            for rank in ranks or (0, 1):
                stdout, stderr = self.processes[rank].communicate(timeout=TIMEOUT_S)
                ended.append(Ended(self.processes[rank].returncode, stdout, stderr))
        finally:
            for process in self.processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for stream in (process.stdout, process.stderr):
                    assert stream is not None
                    stream.close()
        return ended

    def received(self) -> dict[str, list[object]]:
        """Return (steps, is_final, ended_by, inside) that rank 0 had of each rank at its end."""
        return dict(json.loads((self.cwd / "received.json").read_text()))


def journal_kinds(cwd: Path, rank: int) -> list[str]:
    (path,) = cwd.glob(f"runs/*/rank{rank}.jsonl")
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


ALL_FINAL = {"0": [5, True, None, []], "1": [5, True, None, []]}


@pytest.mark.parametrize(
    "end",
    [
        "time.sleep(0.2); dist.destroy_process_group()",
        "dist.barrier(); time.sleep(0.5 * rank)",
        pytest.param("", marks=pytest.mark.programs),
    ],
)
def test_ranks_that_end_together_are_in_the_summary_and_print_nothing_else(tmp_path: Path, end: str) -> None:
    group = Group(tmp_path, f"train(5)\n{end}")
    first, second = group.end()
    assert group.received() == ALL_FINAL
    assert (first.status, second.status, first.stderr, second.stderr, second.stdout) == (0, 0, "", "", "")
    assert "rank" in journal_kinds(tmp_path, 0)
    assert journal_kinds(tmp_path, 1)[-2:] == ["rank", "end"]


def test_file_rendezvous_uses_files_in_the_run_folder(tmp_path: Path) -> None:
    text = "train(5)\ntime.sleep(0.2)\ndist.destroy_process_group()"
    group = Group(tmp_path, text, INIT=f"file://{tmp_path}/meet")
    first, second = group.end()
    assert group.received() == ALL_FINAL
    assert (first.stderr, second.stderr) == ("", "")
    assert [path.name for path in tmp_path.glob("runs/*/ranks/*")] == ["1.json"]


@pytest.mark.programs
def test_ranks_report_in_spawned_processes(tmp_path: Path) -> None:
    spawned = """
    def work(rank, port):
        start_training_profiling(sample_hz=0, monitor_s=0)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        train(5, lambda step: time.sleep(0.1))
        time.sleep(0.2)  # gloo can lock up where its group goes right after a collective
        dist.destroy_process_group()
    if __name__ == "__main__":
        stop_training_profiling()
        import shutil; shutil.rmtree("runs")
        torch.multiprocessing.spawn(work, (int(os.environ["MASTER_PORT"]),), 2)
    """
    script = tmp_path / "script.py"
    script.write_text(SPY + BEGIN + textwrap.dedent(spawned))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(MASTER_PORT=str(free_port()), RECTIFIED_FLOW_PROFILE_RANK_WAIT_S=str(LONG_S)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "received.json").read_text()) == ALL_FINAL
    assert sorted(path.name for path in tmp_path.glob("runs/*/rank*.jsonl")) == ["rank0.jsonl", "rank1.jsonl"]


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), 9)",
        pytest.param("os._exit(0)", marks=pytest.mark.programs),
        pytest.param("os.kill(os.getpid(), 19)", marks=pytest.mark.programs),
    ],
)
def test_wait_for_a_dead_or_stopped_rank_has_a_limit(tmp_path: Path, end: str) -> None:
    text = f"""
    train(5)
    if rank == 1:
        time.sleep(2.5)  # its messages are sent meanwhile, one a second
        {end}
    time.sleep(3)
    begin = time.monotonic()
    stop_training_profiling()
    sys.stderr.write(f"{{time.monotonic() - begin:.1f}}")
    sys.stdout.flush(); sys.stderr.flush(); os._exit(0)
    """
    group = Group(tmp_path, text, RECTIFIED_FLOW_PROFILE_RANK_WAIT_S="1.5", RECTIFIED_FLOW_PROFILE_FLUSH_S="0.001")
    (first,) = group.end(0)
    assert first.status == 0
    assert float(first.stderr) < LONG_S  # less than the limit, where the process is known to be gone
    steps, is_final, ended_by, _ = group.received()["1"]
    assert 1 <= int(str(steps)) <= 5
    assert (is_final, ended_by) == (False, None)


@pytest.mark.programs
def test_other_ranks_end_silently_and_at_once_after_rank_0(tmp_path: Path) -> None:
    text = """
    train(5)
    if rank == 1:
        time.sleep(4)
        begin = time.monotonic()
        stop_training_profiling()
        print("took", time.monotonic() - begin < 100)
    """
    group = Group(tmp_path, text, RECTIFIED_FLOW_PROFILE_RANK_WAIT_S="0")
    first, second = group.end()
    assert (first.status, first.stderr, second.status, second.stderr) == (0, "", 0, "")
    assert second.stdout == "took True\n"
    assert group.received()["0"] == [5, True, None, []]
    assert journal_kinds(tmp_path, 1)[-2:] == ["rank", "end"]
    assert [path.name for path in tmp_path.glob("runs/*/ranks/*")] == ["1.json"]


def test_rank_0_waits_only_briefly_after_an_exception(tmp_path: Path) -> None:
    text = """
    train(5)
    if rank == 1:
        time.sleep(600)
    time.sleep(1)
    raise ValueError
    """
    group = Group(tmp_path, text, RECTIFIED_FLOW_PROFILE_RANK_WAIT_S="230")
    begin_s = time.monotonic()
    (first,) = group.end(0)
    assert first.status == 1
    assert time.monotonic() - begin_s < 200
    assert group.received()["0"] == [5, True, "ValueError", []]


@pytest.mark.programs
def test_second_group_on_the_same_port_can_start(tmp_path: Path) -> None:
    text = """
    train(3)
    for _ in range(3):
        dist.barrier()
        time.sleep(1.1 * (rank == 1))  # the server goes while the others still have their connections
        time.sleep(0.2)  # gloo can lock up where its group goes right after a collective
        dist.destroy_process_group()
        begin = time.monotonic()
        dist.init_process_group("gloo")
        train(2)
        assert time.monotonic() - begin < 100
    """
    group = Group(tmp_path, text)
    first, second = group.end()
    assert (first.status, second.status, first.stderr, second.stderr) == (0, 0, "", "")
    assert group.received() == {"0": [9, True, None, []], "1": [9, True, None, []]}


@pytest.mark.programs
def test_hanging_store_server_delays_no_exit(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(
        "import sys, time\nfrom torch.distributed import TCPStore\n"
        "store = TCPStore('127.0.0.1', int(sys.argv[1]), 2, True, wait_for_workers=False)\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    port = free_port()
    with subprocess.Popen(
        [sys.executable, str(server), str(port)], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    ) as keeper:
        try:
            assert keeper.stdout is not None
            keeper.stdout.readline()
            text = """
            rank = int(os.environ["RANK"])
            store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, False)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            train(5)
            print("ready", flush=True)
            time.sleep(3)
            """
            group = Group(tmp_path, text, has_group=False, MASTER_PORT=str(port))
            for rank in (0, 1):
                group.wait_for(rank, "ready")
            keeper.send_signal(signal.SIGSTOP)
            begin_s = time.monotonic()
            first, second = group.end()
            assert time.monotonic() - begin_s < LONG_S
            assert (first.status, second.status, first.stderr, second.stderr) == (0, 0, "", "")
        finally:
            keeper.kill()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_every_rank_with_the_usual_status(tmp_path: Path, signum: int) -> None:
    group = Group(tmp_path, "train(5)\nprint('ready', flush=True)\nwhile True: time.sleep(1)\n")
    for rank in (0, 1):
        group.wait_for(rank, "ready")
    for process in group.processes:
        process.send_signal(signum)
    first, second = group.end()
    assert (first.status, second.status) == (-signum, -signum)
    name = "SIGTERM" if signum == signal.SIGTERM else "KeyboardInterrupt"
    assert group.received() == {"0": [5, True, name, []], "1": [5, True, name, []]}


def test_profiler_adds_no_collective(tmp_path: Path) -> None:
    # c10d numbers all collectives of a group.
    text = """
    before = dist.group.WORLD._get_sequence_number_for_group()
    train(25, lambda step: time.sleep(0.1))
    stop_training_profiling()
    print(dist.group.WORLD._get_sequence_number_for_group() - before, file=sys.stderr)
    """
    group = Group(tmp_path, text, RECTIFIED_FLOW_PROFILE_LOG_EVERY="5")
    first, second = group.end()
    assert (first.stderr, second.stderr) == ("25\n", "25\n")
    assert first.stdout.count("=== Profiling Report") == 5
    assert group.received() == {"0": [25, True, None, []], "1": [25, True, None, []]}


def test_hang_is_reported_once_with_section_and_line_of_each_rank(tmp_path: Path) -> None:
    # The other rank goes on as soon as rank 0 has reported where the ranks are, however slow the machine is.
    text = """
    import training_profiler.ranks.hang_detector as detector
    import training_profiler.runtime.hang_watch as watch
    detector.QUIET_S = 3.0
    def reported(*words, original=watch.where_text, **more):
        open("reported", "w").close()
        return original(*words, **more)
    watch.where_text = reported
    def wait_for_the_report():
        while not os.path.exists("reported"):
            time.sleep(0.1)
    def hang(step):
        if rank == 1 and step == 10:
            with profile_section("data_loading"):
                wait_for_the_report()
    train(12, hang)
    """
    first, second = Group(tmp_path, text).end()
    line = r"no training step for \d+ s: rank 0 is in synchronization, rank 1 \(.*\) in data_loading since \d+ s"
    where = (
        r"where the ranks are: rank 1 at .*:\d+ wait_for_the_report \(in data_loading\); rank 0 at .*:\d+ train "
        r"\(in synchronization\), waiting for rank 1\. All stacks: training-profiler stacks runs/\S+"
    )
    for said in (line, where):
        assert len(re.findall(f"Profiler: {said}", first.stdout)) == 1
        assert len(re.findall(f"- {said}", first.stdout)) == 1  # under "Profiler health"
    assert (first.stderr, second.stderr, second.stdout) == ("", "", "")
    stacks = read_stacks(next((tmp_path / "runs").glob("2*")))
    assert [each.training.sections[-1] for each in stacks.values()] == ["synchronization", "data_loading"]


def test_rank_that_hangs_in_c_reports_after_sigterm(tmp_path: Path) -> None:
    # Without the profiler it would end at once; torchrun kills it after 30 s.
    text = """
    train(5)
    waits = dist.TCPStore("127.0.0.1", 0, 1, True)
    print("ready", flush=True)
    waits.get("a key that is never set")
    """
    group = Group(tmp_path, text)
    for rank in (0, 1):
        group.wait_for(rank, "ready")
    begin_s = time.monotonic()
    for process in group.processes:
        process.send_signal(signal.SIGTERM)
    first, second = group.end()
    assert time.monotonic() - begin_s < LONG_S
    assert (first.status, second.status) == (-signal.SIGTERM, -signal.SIGTERM)
    # Rank 0 has the last message of the other rank only if that rank ended first.
    assert group.received()["0"] == [5, True, "SIGTERM", []]
    assert [journal_kinds(tmp_path, rank)[-1] for rank in (0, 1)] == ["end", "end"]
