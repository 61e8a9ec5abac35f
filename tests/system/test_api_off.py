"""While profiling is off, the public API does nothing. Invalid settings are errors."""

from pathlib import Path

import pytest

from tests.system.scripts import SWITCH, run

EVERY_CALL = """
from training_profiler import *
import asyncio
start_training_profiling(log_every=1, format="lines", dir="elsewhere")
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


LOADED = """
import sys, threading, signal
print(sorted({"numpy", "torch", "tabulate"} & set(sys.modules)), threading.active_count())
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


@pytest.mark.parametrize("word", [None, "", "0", "false", "NO", " off "])
def test_disabled_calls_do_nothing_load_nothing_and_start_no_thread(tmp_path: Path, word: str | None) -> None:
    script = f"{EVERY_CALL}{LOADED}print(snapshot().steps, dict(snapshot().sections))"
    outcome = run(tmp_path, script, profile=word)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout == "True False\n3 [1] 2\n[] 1\nTrue\n0 {}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_script_prints_the_same_on_and_off_except_for_reports(tmp_path: Path) -> None:
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


NOT_A_NUMBER = "is not an integer >= 0 (steps between periodic reports, 0 for the final summary alone); example: 50"


def test_invalid_switch_or_variable_is_an_error_at_import(tmp_path: Path) -> None:
    assert (
        run(tmp_path, "import training_profiler as t; print(t.is_profiling_enabled())", profile=" on ").stdout
        == "True\n"
    )
    wrong_switch = run(tmp_path, "import training_profiler", profile="maybe")
    wrong_value = run(tmp_path, "import training_profiler", variables={f"{SWITCH}_LOG_EVERY": "-1"})
    for outcome, message in (
        (wrong_switch, f"='maybe' is neither on (1, true, yes, on) nor off (0, false, no, off); example: {SWITCH}=1"),
        (wrong_value, f"_LOG_EVERY='-1' {NOT_A_NUMBER}"),
    ):
        assert outcome.status == 1
        assert outcome.stderr.splitlines()[-1] == f"training_profiler.base.errors.SettingsError: {SWITCH}{message}"


def test_unknown_variables_and_switching_on_after_import_warn(tmp_path: Path) -> None:
    unknown = run(tmp_path, "import training_profiler", variables={f"{SWITCH}_LOG_EVRY": "5"})
    script = f"""
        import os
        import training_profiler
        os.environ["{SWITCH}"] = "1"
        training_profiler.start_training_profiling()
    """
    late = run(tmp_path, script, profile=None)
    assert unknown.status == late.status == 0
    said = f"{SWITCH}_LOG_EVRY='5' is not a setting and has no effect; did you mean {SWITCH}_LOG_EVERY=5?"
    assert unknown.stderr == f"environment:0: ProfilerWarning: {said}\n"  # no line of our source follows
    assert f"ProfilerWarning: {SWITCH} was set after training_profiler was imported" in late.stderr


# While profiling is off, only a call shows that the name is missing; while it is on, the definition raises.
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
