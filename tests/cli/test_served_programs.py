"""What an assistant may run, what answers say, and that nothing goes on once it stops waiting."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.test_compare import write_run
from training_profiler.base.errors import ProfilerError
from training_profiler.cli import served_programs
from training_profiler.cli.mcp import ServedRuns
from training_profiler.cli.served_programs import DROP, KEEP, LONGER, OPEN, ServedPrograms


async def silent(part, doing):
    pass


@pytest.fixture
def served(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    runs = tmp_path / "runs"
    runs.mkdir()
    return ServedPrograms(tmp_path, runs, ServedRuns([runs]).findings)


def answers(monkeypatch, served, act):
    """Let commands do ``act`` instead of running; return their words."""
    seen = []

    async def command(self, words, seconds, progress):
        seen.append(words)
        return act(words)

    monkeypatch.setattr(ServedPrograms, "_command", command)
    return seen


def test_a_run_returns_its_findings_and_what_to_do_next(served, monkeypatch, tmp_path):
    seen = answers(monkeypatch, served, lambda words: write_run(tmp_path / "runs", "20261130-101010") and "")
    found = asyncio.run(served.run(["train.py", "--lr", "1"], 30, silent))
    assert seen == [["run", "--for", "30s", "train.py", "--lr", "1"]]
    assert found["run"].endswith("20261130-101010")
    assert {"verdict", "findings", "next_step", "steps"} <= found.keys()
    assert len(json.dumps(found)) < 16_000
    answers(monkeypatch, served, lambda words: write_run(tmp_path / "runs", "20261130-101011", steps=2) and "")
    assert asyncio.run(served.run(["train.py"], 30, silent))["next_step"] == LONGER
    answers(monkeypatch, served, lambda words: "")
    with pytest.raises(ProfilerError, match="the program left no run"):
        asyncio.run(served.run(["train.py"], 30, silent))


ROW = {"name": "changed", "verdict": "faster", "reason": "", "step_s": 0.03, "losses": None, "where": ""}
ROW |= {"memory_bytes": 1, "break_even_steps": 0, "effect": {"relative": -0.25}, "is_ceiling": False}


@pytest.mark.parametrize(("verdict", "next_step"), [("faster", KEEP), ("slower", DROP), ("undecided", OPEN)])
def test_only_a_proven_patch_is_to_be_kept(served, monkeypatch, verdict, next_step):
    patches = []

    def tried(words):
        patches.append(Path(words[words.index("--patch") + 1]).read_text())
        return json.dumps({"rows": [ROW | {"verdict": verdict}], "statement": f"{verdict} \x1b[31m", "notes": []})

    answers(monkeypatch, served, tried)
    found = asyncio.run(served.try_patch(["train.py"], "--- a/train.py", 2, silent))
    assert (found["next_step"], found["statement"]) == (next_step, f"{verdict} \\x1b[31m")
    assert patches == ["--- a/train.py\n"]


def test_known_changes_are_tried_and_those_that_helped_are_named(served, monkeypatch):
    data = {"rows": [ROW | {"name": "fused"}], "together": None, "notes": [], "run_folder": "runs/x"}
    answers(monkeypatch, served, lambda words: json.dumps(data))
    found = asyncio.run(served.try_changes(["-m", "train"], 2, silent))
    assert found["helped"] == ["fused"]
    assert found["next_step"].startswith("Read the edit with: training-profiler try --show-diff runs/x")


@pytest.mark.parametrize("program", [[], ["/bin/sh"], ["../outside.py"], ["absent.py"], ["--help"], ["link.py"]])
def test_what_is_not_a_python_file_of_the_folder_is_refused(served, tmp_path, program):
    (tmp_path.parent / "outside.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path.parent / "outside.py")
    with pytest.raises(ProfilerError, match=r"no program|is not a Python file below"):
        asyncio.run(served.run(program, 30, silent))


@pytest.mark.parametrize("seconds", [0, -1, 3601, float("nan")])
def test_a_time_has_a_bound(served, seconds):
    with pytest.raises(ProfilerError, match="is not a time from 1 s to an hour"):
        asyncio.run(served.run(["train.py"], seconds, silent))


def test_a_command_that_fails_says_how_and_one_without_a_waiter_ends(served, monkeypatch, tmp_path):
    monkeypatch.setattr(served_programs, "COMMAND", (sys.executable, "-c"))
    with pytest.raises(ProfilerError, match="status 3: why"):
        asyncio.run(served._command(["import sys; sys.stderr.write('why'); sys.exit(3)"], 5, silent))
    assert asyncio.run(served._command(["print('out')"], 5, silent)) == "out\n"
    said = "import sys; sys.exit('training-profiler: a promise\\ntraining-profiler: no time; example: --budget 4m')"
    monkeypatch.setattr(served_programs, "COMMAND", (sys.executable, "-c", said))
    with pytest.raises(ProfilerError, match=r"^status 1: no time; example: minutes=4$"):
        asyncio.run(served._command(["try"], 5, silent))
    monkeypatch.setattr(served_programs, "COMMAND", (sys.executable, "-c"))

    async def cancelled():
        code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
        task = asyncio.ensure_future(served._command([code], 500, silent))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
