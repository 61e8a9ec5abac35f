"""The recipes of CONTRIBUTING.md, "How to add", each followed on a copy of the package: it takes effect at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.traces import Trace, gpu

PACKAGE = Path(__file__).parents[1] / "training_profiler"
SWITCH = "RECTIFIED_FLOW_PROFILE"
SECONDS = 120

STEPS = """
import time
from training_profiler import profile_section, profile_step, start_training_profiling, stop_training_profiling
start_training_profiling({settings})
for _ in range(12):
    with profile_section("forward_pass"):
        time.sleep(0.005)
    profile_step()
stop_training_profiling()
"""


class Copy:
    """A copy of the package that a contributor changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "training_profiler"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        self.before = self._files()

    def append(self, file: str, text: str) -> None:
        with (self.package / file).open("a", encoding="utf-8") as opened:
            opened.write(text)

    def insert(self, file: str, marker: str, text: str) -> None:
        """Insert ``text`` in front of ``marker``, which is in ``file`` once."""
        path = self.package / file
        before = path.read_text(encoding="utf-8")
        assert before.count(marker) == 1, f"{marker!r} is in {file} {before.count(marker)} times"
        path.write_text(before.replace(marker, text + marker), encoding="utf-8")

    def changed_files(self) -> set[str]:
        after = self._files()
        return {name for name in after if after[name] != self.before.get(name)}

    def run(self, *words: str, **variables: str) -> str:
        """Run the interpreter in the folder; return its output."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(SWITCH)}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**environment, "PYTHONPATH": str(self.folder), **variables},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_steps(self, settings: str = "") -> str:
        script = self.folder / "steps.py"
        script.write_text(STEPS.format(settings=settings), encoding="utf-8")
        return self.run(str(script), **{SWITCH: "1", f"{SWITCH}_FORMAT": "lines"})

    def _files(self) -> dict[str, str]:
        return {
            path.relative_to(self.package).as_posix(): path.read_text(encoding="utf-8")
            for path in self.package.rglob("*.py")
        }


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_rule_is_one_row_and_one_function(copy: Copy) -> None:
    copy.append(
        "diagnosis/program.py",
        '''

@RULES.rule(
    "always", 0.5, label="SLOW SLEEP", claims=(FORWARD_PASS,), saves=(0.4, 1.2), changes=(Change.DETACH,)
)  # of step time
def always(snapshot: Snapshot, threshold: float) -> Finding | None:
    """Flag a forward pass that takes over half of the step."""
    cost = cost_of_steps(snapshot, threshold, snapshot.total_of_step_s(FORWARD_PASS) or 0.0)
    return cost.finding(f"The forward pass sleeps ({cost.per_step} per step)", "Do not sleep in it")
''',
    )
    output = " ".join(copy.run_steps().split())
    assert "SLOW SLEEP: The forward pass sleeps" in output  # the label of the verdict
    assert ", likely " in output  # the range of the saving
    assert "Do not sleep in it. Losses: same bit for bit" in output  # what the change does to the losses
    assert "is spent in the forward pass" not in output  # its seconds are claimed by their cause
    assert copy.changed_files() == {"diagnosis/program.py"}
    assert "The forward pass sleeps" not in copy.run_steps("thresholds={'always': 1.0}")


def test_rule_on_a_share_is_one_row(copy: Copy) -> None:
    copy.insert(
        "diagnosis/shares.py",
        '    StepShare(\n        code="data-loading-bound",\n',
        '    StepShare(code="any", section=FORWARD_PASS, threshold=0.01, activity="in any pass", fix=Fix("none")),\n',
    )
    assert "% of step time is spent in any pass (forward_pass" in " ".join(copy.run_steps().split())
    assert copy.changed_files() == {"diagnosis/shares.py"}


def test_trace_rule_is_one_function(copy: Copy) -> None:
    copy.append(
        "trace_analysis/rules_host.py",
        '''

@RULES.rule("always", threshold=0.0)
def always(analysis: Trace, threshold: float) -> Finding | None:
    """Fire in every trace."""
    return found("this rule always fires", "leave it", 1e6, steps=1)
''',
    )
    trace = Trace(deviceProperties=[gpu()])
    for number in range(3):
        trace.step(number + 1, 200 * number, 200)
        trace.kernel("gemm", 200 * number + 70, 100, launched=(200 * number + 62, 2))
    path = trace.write(copy.folder)
    assert "this rule always fires" in copy.run("-m", "training_profiler", "trace", str(path))
    assert copy.changed_files() == {"trace_analysis/rules_host.py"}


def test_tracker_is_one_file_and_one_row(copy: Copy) -> None:
    (copy.package / "sinks" / "steps_file.py").write_text(
        '''"""``steps.txt`` in the run folder: the step of each row."""

from collections.abc import Sequence
from pathlib import Path

from training_profiler.base.trackers import STEPS
from training_profiler.sinks.sink import MetricRow, Sink, folder_for


class StepsFile(Sink):
    """Appends to the file."""

    name = STEPS.name

    def open(self, folder: Path | None) -> None:
        """Create the file."""
        self._file = (folder_for(folder) / "steps.txt").open("a")

    def write(self, rows: Sequence[MetricRow]) -> None:
        """Append one line per row."""
        self._file.writelines(f"{row.step}\\n" for row in rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
''',
        encoding="utf-8",
    )
    registry = copy.package / "base" / "trackers.py"
    with registry.open("a", encoding="utf-8") as file:
        file.write('STEPS: Final = Tracker("steps", "steps_file", "StepsFile", "`steps.txt`")\n')
        file.write("TRACKERS[STEPS.name] = STEPS\n")
    copy.run_steps("log_every=4, sinks='steps'")
    (written,) = copy.folder.glob("runs/*/steps.txt")
    assert written.read_text().split()[-1] == "12"
    assert copy.changed_files() == {"sinks/steps_file.py", "base/trackers.py"}


def test_inferred_section_of_a_function_is_one_row(copy: Copy) -> None:
    pytest.importorskip("torch")
    copy.insert(
        "instrumentation/patches/simple_spans.py",
        '    "weight averaging": (\n',
        """    "flat parameters": (
        SimpleSpan(
            "torch.nn.utils.convert_parameters",
            ("parameters_to_vector",),
            "flat_parameters",
            also_in="torch.nn.utils",
        ),
    ),
""",
    )
    script = copy.folder / "train.py"
    script.write_text(
        """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.parameters_to_vector(model.parameters())
    optimizer.step()
    optimizer.zero_grad()
""",
        encoding="utf-8",
    )
    output = copy.run("-m", "training_profiler", "run", str(script))
    rows = [line.split() for line in output.splitlines() if line.startswith("flat_parameters ")]
    assert any("12" in row for row in rows), output
    assert copy.changed_files() == {"instrumentation/patches/simple_spans.py"}


def test_backend_is_one_row(copy: Copy) -> None:
    copy.insert("base/backends.py", "# The first that is in use counts.\n", 'ZPU: Final = Backend("zpu", "ZPU")\n')
    path = copy.package / "base" / "backends.py"
    text = path.read_text(encoding="utf-8").replace("(CUDA, XPU,", "(ZPU, CUDA, XPU,")
    path.write_text(text, encoding="utf-8")
    script = """
import sys, types
module = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, synchronize=print)
sys.modules["torch"] = types.SimpleNamespace(zpu=module)
from training_profiler.base.backends import find_accelerator
found = find_accelerator()
print(found.kind, found.backend.profiler_activity)
"""
    assert copy.run("-c", script) == "zpu ZPU\n"
    assert copy.changed_files() == {"base/backends.py"}
