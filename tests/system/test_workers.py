"""Worker processes of a training print nothing and cannot hang."""

import json
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.launching import execute, through_run
from tests.system.scripts import ROOT, run_forked, run_without_torch


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.programs)])
def test_loader_workers_with_sections_stay_silent(tmp_path: Path, method: str) -> None:
    script = f"""
        import torch
        from torch.utils.data import DataLoader, Dataset
        from training_profiler import *

        class Squares(Dataset):
            def __len__(self): return 12
            def __getitem__(self, i):
                with profile_section("decode"):
                    assert not is_profiling_enabled()
                    profile_step()
                    return torch.tensor(float(i * i))

        if __name__ == "__main__":
            start_training_profiling(log_every=1000)
            loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context="{method}")
            for epoch in range(2):
                for batch in profile_dataloader(loader, name="train"):
                    with profile_section("forward_pass"): batch.sum()
                    profile_step()
    """
    outcome = run_forked(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert outcome.report["steps"] == 12
    assert outcome.report["loaders"][0]["batches"] == 12
    assert "decode" not in outcome.report["sections"]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.programs)])
def test_pools_and_processes_stay_silent(tmp_path: Path, method: str) -> None:
    script = f"""
        import multiprocessing, concurrent.futures
        from training_profiler import *

        @profile_section("decorated")
        def work(x):
            with profile_section("work"):
                profile_step()
                return x * x, is_profiling_enabled()

        if __name__ == "__main__":
            with profile_section("parent"): pass
            context = multiprocessing.get_context("{method}")
            with context.Pool(2) as pool:
                print(pool.map(work, range(3)))
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
                print(list(pool.map(work, range(3))))
            process = context.Process(target=work, args=(1,))
            process.start(); process.join()
            print(process.exitcode)
    """
    outcome = run_without_torch(tmp_path, script)
    answer = "[(0, False), (1, False), (4, False)]\n"
    assert outcome.printed.startswith(answer * 2 + "0\n")
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert not {"decorated", "work"} & outcome.report["sections"].keys()


@pytest.mark.parametrize("ending", ["", "os._exit(0)", "sys.exit(0)", "stop_training_profiling()"])
def test_forked_child_stays_silent_however_it_ends(tmp_path: Path, ending: str) -> None:
    script = f"""
        import os, sys
        from training_profiler import *
        start_training_profiling(log_every=1)
        with profile_section("parent"):
            child = os.fork()
            if not child:
                for _ in range(200):
                    with profile_section("child"): pass
                    profile_step()
                start_training_profiling()
                assert not is_profiling_enabled()
                {ending or "pass"}
                sys.exit(0)
        print("child ended with", os.waitpid(child, 0)[1])
    """
    outcome = run_without_torch(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert "child ended with 0\n" in outcome.stdout
    assert list(outcome.report["sections"])[:1] != ["child"]
    assert "child" not in outcome.report["sections"]


def test_fork_while_another_thread_reports_cannot_hang_the_child(tmp_path: Path) -> None:
    script = """
        import os, threading
        import training_profiler.runtime.health
        training_profiler.runtime.health.REPORTS_FREE = 10**9
        from training_profiler import *
        start_training_profiling(log_every=1, stream="stderr")
        done = threading.Event()
        def train():
            while not done.is_set():
                with profile_section("forward_pass"): pass
                profile_step()
        thread = threading.Thread(target=train)
        thread.start()
        statuses = set()
        for _ in range(20):
            child = os.fork()
            if not child:
                with profile_section("child"): profile_step()
                stop_training_profiling()
                os._exit(0)
            statuses.add(os.waitpid(child, 0)[1])
        done.set()
        thread.join()
        print(statuses)
    """
    outcome = run_without_torch(tmp_path, script)
    assert (outcome.status, outcome.stdout) == (0, "{0}\n")
    assert outcome.stderr.count("=== Final Profiling Summary") == 1


def test_child_that_starts_profiling_is_profiled_even_if_forked(tmp_path: Path) -> None:
    script = """
        import multiprocessing
        from training_profiler import *

        def train():
            start_training_profiling(log_every=1000)
            for _ in range(3):
                with profile_section("forward_pass"): pass
                profile_step()
            stop_training_profiling()

        if __name__ == "__main__":
            child = multiprocessing.get_context("fork").Process(target=train)
            child.start()
            child.join()
            assert child.exitcode == 0
    """
    outcome = run_without_torch(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert outcome.report["steps"] == 3


def test_no_epoch_is_lost_while_another_thread_drains(tmp_path: Path) -> None:
    script = """
        import threading
        from training_profiler import *

        def hammer():
            while not done.is_set():
                with profile_section("tokenize"): sum(range(100))

        done = threading.Event()
        threads = [threading.Thread(target=hammer) for _ in range(3)]
        start_training_profiling(log_every=1000)
        for thread in threads: thread.start()
        for epoch in range(10):
            with profile_epoch(epoch):
                for _ in range(5):
                    with profile_section("forward_pass"): sum(range(20000))
                    profile_step()
        done.set()
        for thread in threads: thread.join()
    """
    outcome = run_without_torch(tmp_path, script)
    assert outcome.status == 0, outcome.stderr
    assert [(epoch["steps"], epoch["is_complete"]) for epoch in outcome.report["epochs"]] == [(5, True)] * 10
    assert min(section["self_s"] for section in outcome.report["sections"].values()) >= 0


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Make a folder in which sockets fit: their whole path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        yield Path(folder)


@pytest.mark.programs
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_report_their_lines(tmp_path: Path, short_folder: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(f"""
            import time, torch
            import tests.chaos.programs.without_dynamo
            from torch.utils.data import DataLoader, Dataset

            class Slow(Dataset):
                def __len__(self): return 96
                def __getitem__(self, i):
                    end_s = time.thread_time() + 0.06
                    while time.thread_time() < end_s: pass
                    return torch.tensor([float(i)])

            if __name__ == "__main__":
                loader = DataLoader(
                    Slow(), batch_size=4, num_workers=2, multiprocessing_context="{method}",
                    persistent_workers={method == "spawn"},
                )
                model = torch.nn.Linear(1, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
                for batch in loader:
                    model(batch).sum().backward()
                    optimizer.step()
        """)
    )
    variables = {"TMPDIR": str(short_folder), "OMP_NUM_THREADS": "1"}
    done = execute(tmp_path, through_run(sys.executable, "train.py"), pythonpath=str(ROOT), variables=variables)
    assert (done.status, done.stderr) == (0, "")
    (folder,) = (tmp_path / "runs").glob("2*")
    report = json.loads((folder / "report.json").read_text())
    (loader,) = report["loaders"]
    assert loader["workers"]["workers"] == 2
    # A persistent worker still runs at the end of the run: what it has not written is lost.
    assert loader["workers"]["batches"] in (range(6, 25) if method == "spawn" else (24,))
    assert loader["workers"]["cpu_avg_s"] > 0.24
    hottest, *_ = report["lines"]["data_loading (workers)"]
    assert (hottest["file"], hottest["function"]) == ("train.py", "Slow.__getitem__")
    assert hottest["share"] > 0.9
    (finding,) = (each for each in report["findings"] if each["code"] == "data-loading-bound")
    assert "in its 2 workers above all train.py" in finding["finding"]
    assert not list(short_folder.glob("training_profiler*"))
