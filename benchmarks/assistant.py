"""How much of the possible gain an assistant reaches that follows the skill, and how many unproven edits it keeps.

A scripted client of the SDK's own runs ten trainings with a planted cause by ``training-profiler mcp --run``. It knows
an edit for each cause, which it proposes only where that cause's finding comes first, and a guess that helps no
training, which it proposes as well. It keeps what ``try_patch`` calls faster. The possible gain is that of the right
edit, without the profiler: by processor time, which other work on the machine hardly changes; by the clock, with it and
without it in turns, where a training waits for something.

``python -m benchmarks.assistant [NAME ...]`` needs the package mcp.
"""

import argparse
import asyncio
import difflib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.children import ROOT, environment
from benchmarks.figures import Figure, print_figures, print_table

PLANTED = ROOT / "tests" / "planted"
RUN_S, MOST_RUN_S, MINUTES, TURNS = 20.0, 160.0, 1.5, 3
GUESS = "torch.manual_seed(0)", "torch.manual_seed(0)\n    torch.backends.cudnn.benchmark = True"
WORKERS = "batch_size={0}", "batch_size={0}, num_workers=2, persistent_workers=True"
LONGER = {  # seconds of steps, so that blocks of them can be compared
    "anomaly_mode": ("STEPS = 60", "STEPS = 600"),
    "generator_twice": ("STEPS = 60", "STEPS = 600"),
    "frozen_backbone": ("EPOCHS = 6", "EPOCHS = 60"),
    "detached_teacher": ("STEPS = 120", "STEPS = 900"),
    "computed_weight": ("STEPS = 60", "STEPS = 600"),
    "copied_average": ("train(300)", "train(2000)"),
    "slow_dataset": ("Pictures(1920)", "Pictures(19200)"),
    "synchronizing_item": ("range(150)", "range(900)"),
    "slow_checkpoint": ("range(240)", "range(1800)"),
    "loop_in_dataset": ("64 * 600", "64 * 3000"),
}
WAITING = ("slow_dataset", "loop_in_dataset", "synchronizing_item", "slow_checkpoint")  # for workers, a device, a disk
EDITS = {  # by program: the cause, and what an assistant that reads its advice writes
    "anomaly_mode": ("anomaly-detection", "    torch.autograd.set_detect_anomaly(True)\n", ""),
    "generator_twice": ("repeated-forward", "        made = generator(noise)  # again\n", ""),
    "frozen_backbone": ("frozen-forward", '"--kept" in sys.argv', "True"),
    "detached_teacher": (
        "unused-graphs",
        "teacher(image + shift).detach()",
        "torch.no_grad()(teacher)(image + shift)",
    ),
    "computed_weight": ("computed-weights", 'if "--cached" in sys.argv', "if True"),
    "copied_average": (
        "unexplained",
        "fresh = copy.deepcopy(self.model)\n        with torch.no_grad():\n            "
        "torch._foreach_lerp_(list(fresh.parameters()), list(self.average.parameters()), 0.99)\n        "
        "self.average = fresh",
        "with torch.no_grad():\n            "
        "torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 0.01)",
    ),
    "slow_dataset": ("data-loading-bound", *(each.format(32) for each in WORKERS)),
    "loop_in_dataset": ("data-loading-bound", *(each.format(64) for each in WORKERS)),
    "synchronizing_item": ("waits-for-device", "for _parameter in model.parameters():", "for _parameter in ():"),
    "slow_checkpoint": ("checkpointing-heavy", "if step % 3 == 0", "if step % 30 == 0"),
}


@dataclass(slots=True)
class Outcome:
    """What became of one program."""

    name: str
    first: str = ""  # finding
    verdicts: tuple[str, ...] = ()
    reached: float = 0.0  # part of the training's time that the kept edits save, as they were proven
    unproven: int = 0  # edits kept that save nothing when they are measured again
    possible: float = 0.0


def of_children() -> float:
    """Return the processor time of all children that have ended, in s."""
    used = os.times()
    return used.children_user + used.children_system


def seconds_of(program: Path, clock: Callable[[], float]) -> float:
    """Return how long a training takes without the profiler, in s; the start is left out."""
    took = []
    for words in ([str(program)], ["-c", "import torch.utils.data"]):
        began = clock()
        subprocess.run(
            [sys.executable, *words],
            env=environment(False, ""),
            cwd=program.parent,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        took.append(clock() - began)
    return max(1e-3, took[0] - took[1])


def saved(plain: Path, edited: Path) -> float:
    """Return the part of the training's time that an edit saves, by trainings in turns."""
    clock, turns = (time.perf_counter, TURNS) if plain.stem in WAITING else (of_children, 1)
    ratios = [seconds_of(edited, clock) / seconds_of(plain, clock) for _ in range(turns)]
    return 1 - median(ratios)


def patch_of(program: Path, old: str, new: str) -> str:
    """Return the edit of a program as a diff."""
    before = program.read_text()
    assert before.count(old) == 1, (program.name, old)
    now, then = (text.splitlines(keepends=True) for text in (before, before.replace(old, new)))
    return "".join(difflib.unified_diff(now, then, f"a/{program.name}", f"b/{program.name}"))


async def proof_of(client: Any, program: Path, patch: str) -> dict[str, Any]:
    """Return what a proof says; one that needs more time, as its answer says, is given that once."""
    words = {"program": [program.name], "patch": patch, "minutes": MINUTES}
    answer = await client.call_tool("try_patch", words)
    if answer.is_error and (longer := re.search(r"minutes=(\d+)", answer.content[0].text)):
        answer = await client.call_tool("try_patch", words | {"minutes": float(longer[1])})
    proof = dict(answer.structured_content or {"verdict": "refused", "next_step": answer.content[0].text})
    if "more minutes" in proof["next_step"]:
        answer = await client.call_tool("try_patch", words | {"minutes": 2 * MINUTES})
    return dict(answer.structured_content or proof)


async def improved(client: Any, program: Path, plain: Path) -> Outcome:
    """Follow the skill on one program: profile, read, propose, prove, keep only what is proven."""
    cause, *right = EDITS[plain.stem]
    outcome, proposals = Outcome(plain.stem), {cause: (right[0], right[1]), "": GUESS}
    seconds = RUN_S
    while proposals:
        answer = await client.call_tool("run", {"program": [program.name], "seconds": seconds})
        found = answer.structured_content
        if "more seconds" in found["next_step"] and seconds < MOST_RUN_S:
            seconds *= 2
            continue
        codes = [each["code"] for each in found["findings"] if each.get("saving_s")]
        outcome.first = outcome.first or (codes[0] if codes else "none")
        proposal = proposals.pop(next((code for code in codes if code in proposals), ""), None)
        if proposal is None:
            break
        proof = await proof_of(client, program, patch_of(program, *proposal))
        outcome.verdicts += (proof["verdict"],)
        if proof["next_step"].startswith("Proven"):
            before = outcome.reached
            outcome.reached = 1 - (1 - before) * (1 + proof["effect"]["relative"])
            outcome.unproven += proposal == GUESS
            program.write_text(program.read_text().replace(proposal[0], proposal[1]))
    edited = plain.with_name(f"{plain.stem}_right.py")
    edited.write_text(plain.read_text().replace(right[0], right[1]))
    outcome.possible = saved(plain, edited)
    return outcome


async def outcomes_of(names: Sequence[str]) -> list[Outcome]:
    """Return what became of the programs, one after the other."""
    import mcp

    found = []
    for name in names:
        with TemporaryDirectory() as folder, TemporaryDirectory() as kept:
            plain, program = Path(kept, f"{name}.py"), Path(folder, "train.py")
            text, longer = (PLANTED / plain.name).read_text(), LONGER[name]
            assert text.count(longer[0]) == 1, (name, longer)
            plain.write_text(text.replace(*longer))
            program.write_text(plain.read_text())
            server = mcp.StdioServerParameters(
                command=sys.executable,
                args=["-m", "training_profiler", "mcp", "--run"],
                cwd=folder,
                env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
            )
            async with mcp.Client(server, read_timeout_seconds=900) as client:
                outcome = await improved(client, program, plain)
            print(outcome, file=sys.stderr, flush=True)
            found.append(outcome)
    return found


def main() -> None:
    """Measure all programs, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    outcomes = asyncio.run(outcomes_of(parser.parse_args().names or list(EDITS)))
    rows = [
        [each.name, each.first, ", ".join(each.verdicts), f"{each.reached:.0%}", f"{each.possible:.0%}"]
        for each in outcomes
    ]
    print_table(["program", "first finding", "proofs", "saved", "possible"], rows)
    shares = [min(1.0, max(0.0, each.reached / each.possible)) for each in outcomes if each.possible > 0]
    print_figures(
        [
            Figure("unproven edits kept", sum(each.unproven for each in outcomes), 0),
            Figure("part of the possible gain left", 1 - sum(shares) / max(1, len(shares)), 0.3, "", 2),
        ]
    )


if __name__ == "__main__":
    main()
