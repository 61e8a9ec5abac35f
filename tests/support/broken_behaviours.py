"""Forty broken behaviours of the package: the tests of each row must fail, or they have lost their power.

Run manually, before and after a change of tests: ``python -m tests.support.broken_behaviours [word ...]``; words choose
rows. A row is applied to a copy of the tree. Its text must be in the package exactly once: in the file
named, or, if the code has moved, in any other.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = "training_profiler"
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
TIMEOUT_S = 600


class Broken(NamedTuple):
    """A text of the package, what breaks it, and the tests that must notice."""

    file: str
    tests: str  # below tests
    text: str
    replacement: str


ROWS = r"""
instrumentation/loop_detection/phase_detector.py | instrumentation/test_loops.py
- max(self._run_end_ns, self._eval_mode_end_ns)
+ self._run_end_ns
instrumentation/loop_detection/phase_detector.py | instrumentation/test_loops.py
- self.is_open and not loader_pass.fetches and 0 != self._evaluated
+ False and 0 != self._evaluated
instrumentation/loop_detection/phase_detector.py | instrumentation/test_loops.py
- return latest is None or latest.kind is not _UNKNOWN
+ return latest is None
instrumentation/loop_detection/loader_passes.py | instrumentation/test_passes.py
- if latest is not None and not is_first and latest.iterator() is iterator:
+ if latest is not None and latest.iterator() is iterator:
instrumentation/loop_detection/no_grad_runs.py | instrumentation/test_no_grad_runs.py
- "completions", "decode", "generate", "generation",
+ "completions", "decode",
instrumentation/context.py | instrumentation/test_training_thread.py
- self.busy_with = FETCH
+ self.busy_with = FREE
aggregation/span_matching.py | aggregation/test_step_spans.py aggregation/test_run_stats.py
- return bool((marks.codes == STEP_END).all())
+ return bool((marks.codes == STEP_END).any())
aggregation/step_timeline.py | aggregation/test_step_spans.py aggregation/test_run_stats.py
- if kind == LOOP_BEGIN and self._may_begin_later:
+ if kind == LOOP_BEGIN:
aggregation/lines.py | aggregation/test_hot_lines.py
- for phase, count in seen.items() if count >= 10]
+ for phase, count in seen.items() if count > 0]
aggregation/totals.py | aggregation/test_gradient_sync.py
- if not synced.is_on_host:
+ if synced.is_on_host:
statistics/trend.py | aggregation/test_change_point.py
- ordered[middle - 1] + ordered[middle]) / 2
+ ordered[middle - 1] + ordered[middle])
statistics/trend.py | aggregation/test_change_point.py
- return 0 < CLEAR_CUT * usual < step
+ return 0 < usual < step
sampling/host.py | sampling/test_host.py
- if limit is not None and limit < NO_LIMIT]
+ if limit is not None]
sampling/host.py | sampling/test_host.py
- return None if used is None else max(0, used - inactive)
+ return used
sampling/host.py | sampling/test_host.py
- return sum(busy for busy, _ in readings), sum(whole for _, whole in readings)
+ return sum(busy for busy, _ in readings), sum(busy for busy, _ in readings)
recording/data_loader.py | recording/test_data_loader.py
- return None if None in samples else sum(count or 0 for count in samples)
+ return sum(count or 0 for count in samples)
diagnosis/shares.py | diagnosis/test_share_rules.py diagnosis/test_cases.py
- if share < threshold or (share == threshold and not self.fires_at_threshold):
+ if share < threshold:
diagnosis/shares.py | diagnosis/test_share_rules.py diagnosis/test_cases.py
- if saved * total_s < MIN_SAVING_S:
+ if saved * total_s < 0:
diagnosis/registry.py | diagnosis/test_registry.py diagnosis/test_claims.py diagnosis/test_diagnose.py
- if is_own or finding.potential_saving_s >= least_s:
+ if True:
statistics/compare.py | statistics/test_compare.py
- return SLOWER if shown.relative > 0 else FASTER, is_by_mean
+ return FASTER, is_by_mean
statistics/compare.py | statistics/test_compare.py
- min(old.count, new.count) < FEWEST_STEPS
+ max(old.count, new.count) < FEWEST_STEPS
ranks/message.py | ranks/test_message.py ranks/test_exchange.py
- return max(MIN_INTERVAL_S, world_size / MESSAGES_PER_S)
+ return MIN_INTERVAL_S
ranks/comparison.py | ranks/test_cases.py ranks/test_comparison.py
- offset = Offset(low_ns, high_ns, len(common)) if low_ns <= high_ns else None
+ offset = Offset(low_ns, high_ns, len(common))
storage/journal_discovery.py | storage/test_journal_discovery.py storage/test_reading_ranks.py
- return path.name.startswith(stem) and path.name.endswith(".jsonl")
+ return path.name.endswith(".jsonl")
safety/files.py | safety/test_files.py safety/test_own_folder.py
- if not stat.S_ISREG(status.st_mode):
+ if False:
safety/files.py | safety/test_files.py safety/test_own_folder.py
- return not os.stat(path.parent).st_mode & _OTHERS_WRITE
+ return True
safety/fault_guard.py | safety/test_fault_guard.py
- if part in self.disabled:
+ if False:
safety/fault_guard.py | safety/test_fault_guard.py
- if self._paused_s <= 1.1 * self._wanted_s:
+ if True:
runtime/health.py | runtime/test_health.py
- return sorted(rounds)[CALIBRATION_ROUNDS // 2]
+ return sorted(rounds)[-1]
runtime/health.py | runtime/test_health.py
- return near + (far - near) * min(1.0, max(0.0, part))
+ return near
settings/settings.py | test_settings.py
- if most is not None and number > most:
+ if False:
base/text.py | test_text.py
- return shown if len(shown) <= most and len(text) <= most else shown[: most - 1] + "…"
+ return shown
device/device_time.py | device/test_device_time.py
- elif begin.device != end.device:
+ elif False:
torch_capture/plan.py | torch_capture/test_schedule.py torch_capture/test_request.py
- if self._is_asked_for and len(self._ns) < STEPS_BEFORE:
+ if False:
trace_analysis/gaps.py | trace_analysis/test_figures.py
- return sum(share for cause, share in self.shares if cause in causes)
+ return sum(share for _, share in self.shares)
sinks/metrics.py | sinks/test_metrics.py
- if section.count and section.name != PROFILER:
+ if section.count:
sinks/metrics.py | sinks/test_metrics.py
- .strip("_.")[:MAX_PLAIN_NAME] or NAMELESS
+ [:MAX_PLAIN_NAME]
trials/statistics.py | trials/test_statistics.py
- if whole <= 0 or float(near[1:] @ near[:-1]) < _DEPENDENT_FROM / len(near) * whole:
+ if True:
trials/statistics.py | trials/test_statistics.py
- while len(logs) >= 2 * _FEWEST_GROUPS:
+ while False:
sampling/loader_workers.py | sampling/test_loader_workers.py
- self.counts.use_workers(added([self._earlier, *known, waiting]))
+ self.counts.use_workers(added([self._earlier, *known]))
"""


def rows() -> list[Broken]:
    """Return the rows: a line with a file and the tests, then a text and what takes its place."""
    lines = ROWS.strip().splitlines()
    assert all(text.startswith("- ") for text in lines[1::3])
    assert all(text.startswith("+ ") for text in lines[2::3])
    return [
        Broken(*head.split(" | "), text[2:], replacement[2:])
        for head, text, replacement in zip(lines[::3], lines[1::3], lines[2::3], strict=True)
    ]


def place_of(root: Path, row: Broken) -> Path | None:
    """Return the one file of the package that has the row's text once, or None."""
    named = root / PACKAGE / row.file
    if named.is_file() and named.read_text().count(row.text) == 1:
        return named
    counts = {path: path.read_text().count(row.text) for path in (root / PACKAGE).rglob("*.py")}
    found = [path for path, count in counts.items() if count]
    return found[0] if len(found) == 1 and counts[found[0]] == 1 else None


def is_caught(root: Path, row: Broken) -> bool:
    """Return whether a test of the row fails."""
    tests = [f"tests/{each}" for each in row.tests.split() if (root / "tests" / each).exists()]
    words = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]
    variables = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=root, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.returncode == 1


def main(words: Sequence[str]) -> int:
    """Say of each row whether it is caught; return 1 if one is not, or its text is not there once."""
    chosen = [row for row in rows() if all(word in row.file + row.text for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        shutil.copytree(ROOT, root, ignore=NOT_COPIED)
        for row in chosen:
            path = place_of(root, row)
            if path is None:
                answer = "its text is not there once"
            else:
                source = path.read_text()
                path.write_text(source.replace(row.text, row.replacement))
                answer = "caught" if is_caught(root, row) else "NOT CAUGHT"
                path.write_text(source)
            missed += answer != "caught"
            print(f"{answer:10}  {row.file}: {row.text}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} broken behaviours are caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
