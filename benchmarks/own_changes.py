"""What `training-profiler try --patch` and `bisect` say of changes whose effect is known.

    python -m benchmarks.own_changes                        # 20 without an effect, 10 of +5%, 3 histories: 40 minutes
    python -m benchmarks.own_changes --nothing 100 --planted 0 --histories 0

Each training writes a checkpoint in every 20th step. A change without an effect alters a comment. A planted one
makes a step 5% longer, by a loop. A history has 16 commits, of which one adds 10%.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.children import ROOT
from benchmarks.figures import print_table

PROGRAM = """import torch

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(20_000):
    for _ in range(LOOPS):  # comment 0
        pass
    net(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        torch.save([net.state_dict(), torch.zeros(500_000)], "checkpoint.pt")
"""
LOOPS = 200_000
OF_STEP = 0.86  # the loop, by CPU time
COMMITS = 16
GIT = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org")


def program(part: float = 0.0, comment: int = 0) -> str:
    return PROGRAM.replace("LOOPS", str(round(LOOPS * (1 + part / OF_STEP)))).replace("comment 0", f"comment {comment}")


def command(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    call = [sys.executable, "-m", "training_profiler", *words]
    return subprocess.run(
        call,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def verdicts(folder: Path, part: float, count: int, budget: str) -> Counter[str]:
    """Return the verdicts on a change that is tried so many times."""
    found: Counter[str] = Counter()
    for number in range(count):
        subprocess.run([*GIT, "init", "--quiet"], cwd=folder, check=True)
        (folder / "train.py").write_text(program())
        subprocess.run([*GIT, "add", "train.py"], cwd=folder, check=True)
        (folder / "train.py").write_text(program(part, number + 1))
        patch = subprocess.run([*GIT, "diff"], cwd=folder, check=True, capture_output=True).stdout
        (folder / "fix.diff").write_bytes(patch)
        (folder / "train.py").write_text(program())
        outcome = command(folder, "try", "--json", "--budget", budget, "--patch", "fix.diff", "train.py")
        verdict = json.loads(outcome.stdout)["statement"] if outcome.stdout else outcome.stderr.strip()[-200:]
        print(f"{part:.0%} {number + 1}: {verdict}", file=sys.stderr, flush=True)
        found[verdict.partition(":")[0].partition(" larger")[0]] += 1
    return found


def bisected(folder: Path, seed: int, budget: str) -> str:
    """Return the answer for a history of which one commit is slower."""
    at = random.Random(seed).randrange(1, COMMITS)
    subprocess.run([*GIT, "init", "--quiet"], cwd=folder, check=True)
    for number in range(COMMITS + 1):
        (folder / "train.py").write_text(program(0.1 * (number >= at), number))
        subprocess.run([*GIT, "add", "train.py"], cwd=folder, check=True)
        subprocess.run([*GIT, "commit", "--quiet", "-m", f"commit {number}"], cwd=folder, check=True)
    outcome = command(folder, "bisect", "--budget", budget, f"HEAD~{COMMITS}", "HEAD", "--", "train.py")
    print(outcome.stdout, outcome.stderr[-300:], file=sys.stderr, flush=True)
    named = [line for line in outcome.stdout.splitlines() if line.startswith("SINCE ")]
    if not named:
        return "none named"
    return "the right commit" if f" commit {at} (" in named[0] else "another commit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nothing", type=int, default=20)
    parser.add_argument("--planted", type=int, default=10)
    parser.add_argument("--histories", type=int, default=3)
    parser.add_argument("--budget", default="90s", help="of each comparison")
    arguments = parser.parse_args()
    rows = []
    for what, part, count in (("no effect", 0.0, arguments.nothing), ("+5%", 0.05, arguments.planted)):
        with tempfile.TemporaryDirectory() as folder:
            found = verdicts(Path(folder), part, count, arguments.budget)
        rows += [(what, verdict, f"{times} of {count}") for verdict, times in found.most_common()]
    outcomes: Counter[str] = Counter()
    for seed in range(arguments.histories):
        with tempfile.TemporaryDirectory() as folder:
            outcomes[bisected(Path(folder), seed, "5m")] += 1
    rows += [("bisect, +10%", what, f"{times} of {arguments.histories}") for what, times in outcomes.most_common()]
    print_table(("change", "said", "times"), rows)


if __name__ == "__main__":
    main()
