"""What the public API does while profiling is on."""

import json
from pathlib import Path

import pytest

from tests.system.scripts import run_forked, run_without_torch

API = "from training_profiler import *\n"


def test_script_with_only_sections_gets_one_final_summary(tmp_path: Path) -> None:
    script = """
        from training_profiler import profile_section
        for _ in range(4):
            with profile_section("forward_pass"):
                with profile_section("attention"):
                    pass

        @profile_section("recursion")
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        assert fib(10) == 55
    """
    outcome = run_without_torch(tmp_path, script)
    assert (outcome.status, outcome.summaries, outcome.stderr) == (0, 1, "")
    report = outcome.report
    assert report["sections"]["forward_pass"]["count"] == 4
    assert report["sections"]["attention"]["parent"] == "forward_pass"
    # Recursion counts every span, and its wall time once.
    assert report["sections"]["recursion"]["count"] == 177
    assert report["sections"]["recursion"]["self_s"] <= report["wall_s"]
    assert sum(section["self_s"] for section in report["sections"].values()) == pytest.approx(report["wall_s"])


def test_decorated_functions_keep_their_results_names_and_kinds(tmp_path: Path) -> None:
    script = """
        import asyncio, inspect
        from training_profiler import profile_section, snapshot

        @profile_section("function")
        def double(x, *, y=0):
            "Doc."
            return 2 * x + y

        @profile_section("generator")
        def count(n):
            got = []
            for i in range(n):
                got.append((yield i))
            return got

        @profile_section("coroutine")
        async def later(x):
            await asyncio.sleep(0)
            return x

        @profile_section("stream")
        async def echo():
            value = None
            while value != "stop":
                try:
                    value = yield value
                except KeyError as error:
                    value = repr(error)

        class Model:
            @profile_section("method")
            def forward(self, x):
                return x

            @classmethod
            @profile_section("method")
            def make(cls):
                return cls()

        async def main():
            stream = echo()
            answers = [await anext(stream), await stream.asend("a"), await stream.athrow(KeyError("k"))]
            try:
                await stream.asend("stop")
            except StopAsyncIteration:
                answers.append("end")
            half = echo()
            await anext(half)
            await half.aclose()
            return answers, await later(5)

        generator = count(2)
        sent = [next(generator), generator.send("a")]
        try:
            generator.send("b")
        except StopIteration as stop:
            sent.append(stop.value)
        closed = count(3)
        next(closed)
        closed.close()
        print(double(3, y=1), double.__name__, double.__doc__)
        print(sent)
        print(asyncio.run(main()))
        print(Model.make().forward(7))
        print(inspect.isgeneratorfunction(count), inspect.iscoroutinefunction(later), inspect.isasyncgenfunction(echo))
        for name in ("function", "generator", "coroutine", "stream", "method"):
            figures = snapshot().sections.get(name)
            print(name, figures.count if figures else 0)
    """
    on, off = run_without_torch(tmp_path, script), run_without_torch(tmp_path, script, profile="0")
    assert on.printed.splitlines()[:5] == [
        "7 double Doc.",
        "[0, 1, ['a', 'b']]",
        "([None, 'a', \"KeyError('k')\", 'end'], 5)",
        "7",
        "True True True",
    ]
    assert off.stdout.splitlines()[:5] == on.printed.splitlines()[:5]
    assert on.printed.splitlines()[5:10] == ["function 1", "generator 4", "coroutine 1", "stream 5", "method 2"]


def test_sections_of_many_threads_are_all_counted(tmp_path: Path) -> None:
    script = """
        import sys, threading
        from training_profiler import *
        sys.setswitchinterval(1e-5)
        start_training_profiling(log_every=7)

        def work(k):
            for _ in range(2000):
                with profile_section("shared"):
                    with profile_section(f"own {k}"):
                        pass

        threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
        for thread in threads: thread.start()
        for _ in range(100):
            with profile_section("forward_pass"): pass
            profile_step()
        for thread in threads: thread.join()
        print(threading.active_count())
    """
    outcome = run_without_torch(tmp_path, script)
    sections = outcome.report["sections"]
    assert outcome.status == 0
    assert sections["shared"]["count"] == 32_000
    assert [sections[f"own {k}"]["count"] for k in range(16)] == [2000] * 16
    assert sections["forward_pass"]["count"] == 100
    assert outcome.report["health"]["dropped"] == 0
    assert outcome.report["health"]["disabled"] == []


def test_reports_of_intervals_epochs_and_run_come_in_order(tmp_path: Path) -> None:
    script = """
        from training_profiler import *
        start_training_profiling(log_every=4)
        for epoch in (1, 2):
            with profile_epoch(epoch):
                for _ in profile_dataloader(range(4), name="train"):
                    with profile_section("forward_pass"): pass
                    profile_step()
                with profile_phase("validation"):
                    for _ in range(3):
                        with profile_section("forward_pass"): pass
                        profile_step()
        print(snapshot().steps, is_profiling_enabled())
        stop_training_profiling()
        print(snapshot().steps, is_profiling_enabled())
    """
    outcome = run_without_torch(tmp_path, script)
    titles = [line for line in outcome.stdout.splitlines() if line.startswith(("=== ", "8 "))]
    assert titles == [
        "=== Profiling Report (Step 4) ===",
        "=== Epoch 1 Profiling Summary ===",
        "=== Profiling Report (Step 8) ===",
        "=== Epoch 2 Profiling Summary ===",
        "8 True",
        "=== Final Profiling Summary (8 steps) ===",
        "8 False",
    ]
    report = outcome.report
    assert report["sections"]["forward_pass"]["count"] == 8
    assert report["sections"]["validation_epoch"]["count"] == 2
    assert report["sections"]["validation_epoch/forward_pass"]["count"] == 6
    assert [(epoch["number"], epoch["batches"]) for epoch in report["epochs"]] == [(1, 4), (2, 4)]


def test_second_start_applies_new_settings_to_the_same_run_and_a_second_stop_does_nothing(tmp_path: Path) -> None:
    script = """
        from training_profiler import *
        start_training_profiling(log_every=1000)
        profile_step()
        start_training_profiling(log_every=2)
        profile_step(); profile_step()
        stop_training_profiling(); stop_training_profiling()
    """
    outcome = run_without_torch(tmp_path, script)
    assert (outcome.status, outcome.stderr, outcome.summaries) == (0, "", 1)
    assert outcome.report["steps"] == 3
    assert "=== Profiling Report (Step 3) ===" in outcome.stdout


def test_without_a_run_nothing_is_left(tmp_path: Path) -> None:
    stops = "stop_training_profiling()\nwith profile_section('a'): profile_step()"
    for script, printed in (("print(is_profiling_enabled())", "True\n"), (stops, "")):
        outcome = run_without_torch(tmp_path, API + script)
        assert (outcome.status, outcome.stdout, outcome.stderr, outcome.folders) == (0, printed, "", [])


def test_stop_and_start_make_two_runs(tmp_path: Path) -> None:
    script = """
        from training_profiler import *
        for count in (2, 3):
            start_training_profiling()
            for _ in range(count):
                with profile_section("forward_pass"): pass
                profile_step()
            stop_training_profiling()
            with profile_section("forward_pass"): pass  # in no run
    """
    outcome = run_without_torch(tmp_path, script)
    assert outcome.summaries == 2

    reports = [json.loads((folder / "report.json").read_text()) for folder in outcome.folders]
    assert [report["steps"] for report in reports] == [2, 3]
    assert [report["sections"]["forward_pass"]["count"] for report in reports] == [2, 3]


def test_profiled_loader_forwards_every_attribute(tmp_path: Path) -> None:
    script = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from training_profiler import *
        inner = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3)
        loader = profile_dataloader(inner, name="train")
        assert len(loader) == 4
        assert loader.dataset is inner.dataset and loader.batch_size == 3 and loader.sampler is inner.sampler
        loader.tag = "set from outside"
        assert inner.tag == "set from outside"
        assert not hasattr(loader, "no_such_attribute")
        assert [len(batch[0]) for batch in loader] == [3, 3, 3, 1]
        for batch in loader:
            break  # one more batch, and a loader left half-way
        assert [len(batch[0]) for batch in profile_dataloader(inner, name="train")] == [3, 3, 3, 1]
        (figures,) = snapshot().loaders
        print(figures.name, figures.batches, figures.samples, snapshot().sections["data_loading"].count)
    """
    outcome = run_forked(tmp_path, script)
    assert outcome.stderr == ""
    assert outcome.printed.startswith("train 9 23 9\n")


def test_exceptions_inside_sections_and_loaders_pass_and_are_recorded(tmp_path: Path) -> None:
    script = """
        from training_profiler import *
        def batches():
            yield 1
            raise ValueError("bad sample")
        try:
            with profile_section("forward_pass"):
                with profile_epoch(1), profile_phase("validation"):
                    raise KeyError("x")
        except KeyError:
            print("passed")
        for batch in profile_dataloader(batches()):
            profile_step()
    """
    outcome = run_without_torch(tmp_path, script)
    assert outcome.status == 1
    assert outcome.stderr.endswith("ValueError: bad sample\n")
    assert outcome.printed.startswith("passed\n") or "\npassed\n" in outcome.stdout
    assert outcome.report["sections"]["forward_pass"]["count"] == 1
    assert outcome.report["health"]["dropped"] == 0
    assert outcome.report["loaders"][0]["batches"] == 1
    assert outcome.report["ended_by"] == "ValueError"


@pytest.mark.parametrize("collects", [True, False])
def test_the_import_collects_no_garbage_and_leaves_collection_as_it_was(tmp_path: Path, collects: bool) -> None:
    script = f"""
        import gc
        gc.enable() if {collects} else gc.disable()
        generations = []
        gc.callbacks.append(lambda phase, about: generations.append(about["generation"]))
        import training_profiler
        gc.callbacks.clear()
        print(gc.isenabled(), 2 in generations, len(generations) < 20)
    """
    assert run_without_torch(tmp_path, script).stdout == f"{collects} False True\n"
