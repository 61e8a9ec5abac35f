"""What the public API does while profiling is off: nothing. And which values of settings are errors."""

from pathlib import Path

import pytest

from tests.system.scripts import SWITCH, run

EVERY_CALL = """
from training_profiler import *
import asyncio
start_training_profiling(log_every=1, format="lines", dir="elsewhere", no_such_setting=3)
loader = [1, 2]
print(profile_dataloader(loader, name="a") is loader, is_profiling_enabled())

@profile_section("f")
def f(x): return x

@profile_section("g")
def g(): yield 1

@profile_section("h")
async def h(): return 2

with profile_epoch(1), profile_phase("train"), profile_section("a") as nothing:
    print(f(3), list(g()), asyncio.run(h()))
    profile_step()
with profile_phase("anything"), profile_section("a"), profile_section("a"):
    profile_step()
stop_training_profiling()
start_training_profiling()
"""


def test_off_every_call_does_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, EVERY_CALL + "print(snapshot().steps, dict(snapshot().sections))", profile=None)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout == "True False\n3 [1] 2\n0 {}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


@pytest.mark.parametrize("word", [None, "", "0", "false", "NO", " off "])
def test_off_nothing_is_imported_and_no_thread_started(tmp_path: Path, word: str | None) -> None:
    script = """
        import sys, threading, signal
        import training_profiler
        from training_profiler import *
        start_training_profiling()
        with profile_section("a"): profile_step()
        print(sorted({"numpy", "torch", "tabulate"} & set(sys.modules)), threading.active_count())
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """
    outcome = run(tmp_path, script, profile=word)
    assert (outcome.stdout, outcome.stderr) == ("[] 1\nTrue\n", "")


@pytest.mark.parametrize("word", ["1", "true", "YES", " on "])
def test_on_words_switch_on(tmp_path: Path, word: str) -> None:
    outcome = run(tmp_path, "import training_profiler as t; print(t.is_profiling_enabled())", profile=word)
    assert outcome.stdout == "True\n"


def test_script_prints_the_same_on_and_off_but_for_the_reports(tmp_path: Path) -> None:
    script = """
        from training_profiler import *
        start_training_profiling(log_every=1000, stream="stderr")
        for step in range(5):
            with profile_section("forward_pass"):
                print("step", step)
            profile_step()
    """
    on, off = run(tmp_path, script), run(tmp_path, script, profile=None)
    assert on.stdout == off.stdout == "".join(f"step {step}\n" for step in range(5))
    assert off.stderr == ""
    assert "Final Profiling Summary (5 steps)" in on.stderr


def test_switch_that_is_neither_on_nor_off_is_an_error_with_an_example(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import training_profiler", profile="maybe")
    assert outcome.status == 1
    assert outcome.stderr.splitlines()[-1] == (
        "training_profiler.errors.SettingsError: RECTIFIED_FLOW_PROFILE='maybe' is neither on (1, true, yes, on) "
        "nor off (0, false, no, off); example: RECTIFIED_FLOW_PROFILE=1"
    )


@pytest.mark.parametrize("given", ["0", "-1", "'x'", "True", "2.5", "''"])
def test_log_every_that_is_no_positive_integer_is_an_error(tmp_path: Path, given: str) -> None:
    outcome = run(tmp_path, f"import training_profiler as t\nt.start_training_profiling(log_every={given})")
    assert outcome.status == 1
    assert outcome.stderr.splitlines()[-1] == (
        f"training_profiler.errors.SettingsError: start_training_profiling(log_every={given}) "
        "is not a positive integer (steps between periodic reports); example: 50"
    )
    assert outcome.stdout == ""


@pytest.mark.parametrize("given", ["0", "-1", "x"])
def test_log_every_variable_that_is_no_positive_integer_is_an_error_at_import(tmp_path: Path, given: str) -> None:
    outcome = run(tmp_path, "import training_profiler", variables={f"{SWITCH}_LOG_EVERY": given})
    assert outcome.status == 1
    assert outcome.stderr.splitlines()[-1] == (
        f"training_profiler.errors.SettingsError: {SWITCH}_LOG_EVERY='{given}' "
        "is not a positive integer (steps between periodic reports); example: 50"
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [("FORMAT", "xml"), ("STREAM", "file"), ("WARMUP", "-1"), ("FLUSH_S", "nan"), ("MAX_NAMES", "0")],
)
def test_any_other_variable_with_an_unusable_value_is_an_error_with_an_example(
    tmp_path: Path, variable: str, value: str
) -> None:
    outcome = run(tmp_path, "import training_profiler", variables={f"{SWITCH}_{variable}": value})
    assert outcome.status == 1
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith(f"training_profiler.errors.SettingsError: {SWITCH}_{variable}={value!r} is ")
    assert "; example: " in last


def test_unknown_variable_warns_and_suggests_the_nearest(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import training_profiler", variables={f"{SWITCH}_LOG_EVRY": "5"})
    assert outcome.status == 0
    assert (
        f"ProfilerWarning: {SWITCH}_LOG_EVRY is not a setting of the profiler and has no effect; "
        f"did you mean {SWITCH}_LOG_EVERY?"
    ) in outcome.stderr


def test_variables_set_what_arguments_leave_open(tmp_path: Path) -> None:
    script = """
        from training_profiler import *
        start_training_profiling(log_every=2)
        for _ in range(2):
            with profile_section("forward_pass"): pass
            profile_step()
    """
    variables = {
        f"{SWITCH}_LOG_EVERY": "1",
        f"{SWITCH}_FORMAT": "lines",
        f"{SWITCH}_DIR": "elsewhere",
        f"{SWITCH}_STREAM": "stderr",
    }
    outcome = run(tmp_path, script, variables=variables)
    assert outcome.stdout == ""
    assert "=== Profiling Report (Step 2) ===" in outcome.stderr
    assert "=== Profiling Report (Step 1) ===" not in outcome.stderr
    assert "\nforward_pass: count=2, total=" in outcome.stderr
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_switched_on_after_the_import_warns_at_the_start(tmp_path: Path) -> None:
    script = f"""
        import os
        import training_profiler
        os.environ["{SWITCH}"] = "1"
        training_profiler.start_training_profiling()
    """
    outcome = run(tmp_path, script, profile=None)
    assert outcome.status == 0
    assert f"ProfilerWarning: {SWITCH} was set after training_profiler was imported" in outcome.stderr


# Off, a lone argument that is callable cannot be told from a function to decorate: on says it at the definition.
@pytest.mark.parametrize(
    ("profile", "call"),
    [("1", ""), ("0", "train()"), ("0", "train(3)"), ("0", "train(1, 2)"), ("0", "train(model=print)")],
)
def test_forgotten_name_is_a_clear_error(tmp_path: Path, profile: str, call: str) -> None:
    script = f"""
        from training_profiler import profile_section

        @profile_section
        def train(*args, **kwargs):
            pass

        {call}
    """
    outcome = run(tmp_path, script, profile=profile)
    assert outcome.status == 1
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith("TypeError: profile_section")
    assert 'example: @profile_section("' in last
