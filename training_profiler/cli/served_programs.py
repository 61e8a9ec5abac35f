"""Lets an assistant run programs of one folder under the profiler, and prove changes of them."""

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from training_profiler.base.errors import ProfilerError
from training_profiler.base.text import printable_data
from training_profiler.base.units import duration_text
from training_profiler.storage.run_folder import masked
from training_profiler.storage.run_reader import newest_runs

MOST_FINDINGS: Final = 5
MOST_OUTPUT: Final = 2_000  # characters of the end of what failed
COMMAND: Final = (sys.executable, "-m", "training_profiler")
LONGEST_S: Final = 3_600.0
GRACE_S: Final = 60.0  # for the start and the report, beyond the time that the program has
ENDS_WITHIN_S: Final = 20.0
_OF_TRIAL: Final = (
    "name", "verdict", "reason", "step_s", "effect", "losses", "where", "memory_bytes", "break_even_steps",
)  # fmt: skip
EXPLAIN: Final = "explain(code) has the figures of a finding. Write one change as a patch, and prove it with try_patch"
LONGER: Final = "Too few steps to judge: train longer, as by run() with more seconds"
NOTHING: Final = "No change of this program is shown to be worth trying"
DIFF: Final = "Read the edit with: training-profiler try --show-diff"
OWN: Final = "No known change helps: write one of your own, and prove it with try_patch"
KEEP: Final = "Proven: apply the patch, and run() again for what is left"
OPEN: Final = "Not proven: leave the change out, or prove it again with more minutes"
DROP: Final = "Not proven: leave the change out"

Progress = Callable[[float, str], Awaitable[None]]


class ServedPrograms:
    """Runs Python programs below ``folder``; their run folders are in ``runs``, and ``findings`` reads one of these.

    A program is a list of words as after `python`: ["train.py", "--lr", "1e-3"]. What it writes while a change is tried
    is removed afterwards.
    """

    def __init__(self, folder: Path, runs: Path, findings: Callable[[str], dict[str, Any]]) -> None:
        self._folder, self._runs, self._findings = folder.resolve(), runs, findings

    async def run(self, program: list[str], seconds: float, progress: Progress) -> dict[str, Any]:
        """Train under the profiler for ``seconds``; return the verdict and the first findings."""
        before = self._newest()
        seconds = _within(seconds)
        words = ["run", "--for", f"{seconds:g}s", *self._words(program)]
        await self._command(words, seconds, progress)
        newest = self._newest()
        if newest is None or newest == before:
            raise ProfilerError("the program left no run: it made no training step, or does not use torch")
        found = self._findings(str(newest))
        fixes = [each for each in found["findings"] if each["fix"]][:MOST_FINDINGS]
        shown = [{name: value for name, value in each.items() if name != "evidence"} for each in fixes]
        next_step = EXPLAIN if any(each.get("saving_s") for each in shown) else NOTHING
        return {
            **{name: found[name] for name in ("verdict", "steps", "wall_s", "ended_by")},
            "step_s": found["step_time"] and found["step_time"]["median_s"],
            "findings": shown,
            "run": str(newest),
            "next_step": LONGER if found["next_step"] == LONGER else next_step,
        }

    async def try_changes(self, program: list[str], minutes: float, progress: Progress) -> dict[str, Any]:
        """Try known changes that fit what the program waits for; return what each brings, with an interval."""
        seconds = _within(60 * minutes)
        data = await self._json(
            ["try", "--json", "--budget", f"{seconds:g}s", *self._words(program)], seconds, progress
        )
        helped = [row["name"] for row in data["rows"] if row["verdict"] == "faster" and not row["is_ceiling"]]
        return {
            "rows": [{name: row[name] for name in _OF_TRIAL} for row in data["rows"]][:30],
            "together": data["together"] and data["together"]["effect"],
            "helped": helped,
            "notes": data["notes"],
            "run": data["run_folder"],
            "next_step": f"{DIFF} {data['run_folder']}, apply it, and run() again" if helped else OWN,
        }

    async def try_patch(self, program: list[str], patch: str, minutes: float, progress: Progress) -> dict[str, Any]:
        """Prove a patch: train with it and without it in turns. The user's files stay as they are."""
        seconds = _within(60 * minutes)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "change.diff")
            path.write_text(patch if patch.endswith("\n") else f"{patch}\n", encoding="utf-8")
            words = ["try", "--json", "--budget", f"{seconds:g}s", "--patch", str(path), *self._words(program)]
            data = await self._json(words, seconds, progress)
        (row,) = data["rows"]
        return {
            "statement": data["statement"],
            **{name: row[name] for name in _OF_TRIAL if name not in ("name", "where")},
            "notes": data["notes"],
            "next_step": {"faster": KEEP, "undecided": OPEN}.get(row["verdict"], DROP),
        }

    def _words(self, program: Sequence[str]) -> list[str]:
        if not program:
            raise ProfilerError('no program; example: ["train.py", "--lr", "1e-3"]')
        if program[0] == "-m":
            return list(program)
        path = (self._folder / program[0]).resolve()
        if path.suffix != ".py" or not path.is_relative_to(self._folder) or not path.is_file():
            raise ProfilerError(f"{program[0]} is not a Python file below {self._folder}")
        return list(program)

    def _newest(self) -> Path | None:
        with suppress(ProfilerError):
            return newest_runs(self._runs, 1)[0]
        return None

    async def _json(self, words: Sequence[str], seconds: float, progress: Progress) -> Any:
        return printable_data(json.loads(await self._command(words, seconds, progress)))

    async def _command(self, words: Sequence[str], seconds: float, progress: Progress) -> str:
        """Run a command of ours and return its output; end it, with all that it has started, where it is cancelled.

        Raises:
            ProfilerError: it failed, or took too long.
        """
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *words),
            cwd=self._folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        output = asyncio.ensure_future(process.communicate())
        try:
            for waited in range(int(seconds + GRACE_S) // 2):
                done, _ = await asyncio.wait([output], timeout=2)
                if done:
                    break
                await progress(min(1.0, 2 * waited / seconds), " ".join(masked(words)))
            else:
                raise ProfilerError(f"no end after {duration_text(seconds + GRACE_S)}")
        finally:
            if not output.done():
                await _end(process, output)
        out, err = (text.decode("utf-8", "replace") for text in output.result())
        if process.returncode:
            why = (err or out)[-MOST_OUTPUT:]
            if words[0] == "try":  # only the last of its lines says why; a client gives minutes, not a budget
                why = re.sub(r"--budget (\d+)m", r"minutes=\1", why.strip().rpartition("training-profiler: ")[2])
            raise ProfilerError(f"status {process.returncode}: {why}")
        return out


async def _end(process: Any, output: "asyncio.Future[Any]") -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        done, _ = await asyncio.wait([output], timeout=ENDS_WITHIN_S)
        if done:
            return


def _within(seconds: float) -> float:
    if not 0 < seconds <= LONGEST_S:
        raise ProfilerError(f"{seconds:g} s is not a time from 1 s to an hour")
    return seconds
