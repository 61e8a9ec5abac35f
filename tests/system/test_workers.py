"""Worker processes of a training print nothing and cannot hang."""

from pathlib import Path

import pytest

from tests.system.scripts import run


@pytest.mark.parametrize("method", ["fork", "spawn"])
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
            loader = DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context="{method}")
            for epoch in range(2):
                for batch in profile_dataloader(loader, name="train"):
                    with profile_section("forward_pass"): batch.sum()
                    profile_step()
    """
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert outcome.report["steps"] == 12
    assert outcome.report["loaders"][0]["batches"] == 12
    assert "decode" not in outcome.report["sections"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_and_processes_stay_silent(tmp_path: Path, method: str) -> None:
    script = f"""
        import multiprocessing, concurrent.futures
        from training_profiler import *

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
    outcome = run(tmp_path, script)
    answer = "[(0, False), (1, False), (4, False)]\n"
    assert outcome.printed.startswith(answer * 2 + "0\n")
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert "work" not in outcome.report["sections"]


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
    outcome = run(tmp_path, script)
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
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stdout) == (0, "{0}\n")
    assert outcome.stderr.count("=== Final Profiling Summary") == 1


def test_spawned_workers_with_decorated_functions_stay_silent(tmp_path: Path) -> None:
    script = """
        import multiprocessing
        from training_profiler import *

        @profile_section("augment")
        def augment(x):
            return 2 * x

        if __name__ == "__main__":
            start_training_profiling(log_every=1000)
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert pool.map(augment, [1, 2, 3]) == [2, 4, 6]
            profile_step()
    """
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert len(outcome.folders) == 1


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
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert outcome.report["steps"] == 3


def test_decorated_functions_start_no_run(tmp_path: Path) -> None:
    script = """
        from training_profiler import *

        @profile_section("never_called")
        def never_called(): pass
    """
    outcome = run(tmp_path, script)
    assert (outcome.status, outcome.stdout, outcome.stderr, outcome.folders) == (0, "", "", [])


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
    outcome = run(tmp_path, script)
    assert outcome.status == 0, outcome.stderr
    assert [(epoch["steps"], epoch["is_complete"]) for epoch in outcome.report["epochs"]] == [(5, True)] * 10
    assert min(section["self_s"] for section in outcome.report["sections"].values()) >= 0
