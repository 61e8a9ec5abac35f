"""What the public API does while profiling is on."""

from pathlib import Path

import pytest

from tests.system.scripts import run_without_torch

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
