"""Other tools beside the profiler: the training ends and computes as alone, and the profiler reports its steps."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

from tests.chaos.neighbours import PROGRAMS, STEPS, TRAINING, execute, plain_losses, python, reported_steps

pytestmark = pytest.mark.integrations

# Each runs the small training: a command, or the text of a program.
COMMANDS = {
    "coverage": ["-m", "coverage", "run", "{training}"],
    "coverage, branches and threads": ["-m", "coverage", "run", "--branch", "--concurrency=thread", "{training}"],
    "coverage in parallel": ["-m", "coverage", "run", "-p", "{training}"],
    "viztracer": ["-m", "viztracer", "-o", "trace.json", "--tracer_entries", "20000", "{training}"],
    "memray": ["-m", "memray", "run", "-q", "-o", "memray.bin", "{training}"],
    "memray, native": ["-m", "memray", "run", "-q", "--native", "-o", "memray.bin", "{training}"],
    "line_profiler": ["-m", "kernprof", "-l", "-o", "lines.lprof", "{training}"],
    "pyinstrument": ["-m", "pyinstrument", "-o", "pyinstrument.txt", "{training}"],
}
PROGRAM_TEXTS = {
    "gevent, patched before torch": """
from gevent import monkey; monkey.patch_all()
import gevent, small_training
gevent.spawn(small_training.main).join()
""",
    "gevent, patched after torch": """
import small_training
from gevent import monkey; monkey.patch_all()
import gevent
gevent.joinall([gevent.spawn(small_training.main), gevent.spawn(gevent.sleep, 0.01)])
""",
    "gevent, the training on its main greenlet, patched before torch": """
from gevent import monkey; monkey.patch_all()
import small_training
small_training.main()
""",
    "gevent, the training on its main greenlet, patched after torch": """
import small_training
from gevent import monkey; monkey.patch_all()
small_training.main()
""",
    "eventlet, patched before torch": """
import eventlet; eventlet.monkey_patch()
import small_training
eventlet.spawn(small_training.main).wait()
""",
    "eventlet, the training on its main greenlet, patched after torch": """
import small_training
import eventlet; eventlet.monkey_patch()
small_training.main()
""",
    "greenlet": """
import greenlet, small_training
greenlet.greenlet(small_training.main).switch()
""",
    "greenlets that switch in a step": """
import greenlet, small_training, torch
main = greenlet.getcurrent()
forward = torch.nn.Linear.forward
def switching(self, rows):
    main.switch()
    return forward(self, rows)
torch.nn.Linear.forward = switching
training = greenlet.greenlet(small_training.main)
while not training.dead:
    training.switch()
""",
}


@pytest.mark.parametrize("tool", COMMANDS)
def test_tool_that_runs_the_training(tmp_path: Path, tool: str) -> None:
    if find_spec(COMMANDS[tool][1]) is None:
        pytest.skip(f"{COMMANDS[tool][1]} is not installed")
    words = [word.format(training=TRAINING) for word in COMMANDS[tool]]
    ended = execute(tmp_path, python(*words), True)
    assert ended.status == 0, ended.stderr
    assert plain_losses() in ended.stdout
    assert reported_steps(tmp_path) == STEPS, ended.stderr


@pytest.mark.parametrize("core", ["ctrace", "pytrace", "sysmon"])
def test_cores_of_coverage(tmp_path: Path, core: str) -> None:
    pytest.importorskip("coverage")
    if core == "sysmon" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring came with Python 3.12")
    ended = execute(tmp_path, python("-m", "coverage", "run", TRAINING), True, variables={"COVERAGE_CORE": core})
    assert (ended.status, ended.stdout) == (0, plain_losses()), ended.stderr
    assert reported_steps(tmp_path) == STEPS
    shown = subprocess.run(
        python("-m", "coverage", "report", f"--include={PROGRAMS}/*"), cwd=tmp_path, capture_output=True, text=True
    )
    assert "small_training.py" in shown.stdout


@pytest.mark.parametrize("how", PROGRAM_TEXTS)
def test_library_that_switches_stacks(tmp_path: Path, how: str) -> None:
    pytest.importorskip(how.split(",")[0].split()[0].rstrip("s"))
    script = tmp_path / "script.py"
    script.write_text(PROGRAM_TEXTS[how])
    ended = execute(tmp_path, python(script), True)
    assert (ended.status, ended.stdout) == (0, plain_losses()), ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert "Traceback" not in ended.stderr
    if "before" not in how:  # steps of a greenlet are not detected
        assert reported_steps(tmp_path) == STEPS, ended.stderr


def test_sampler_from_outside(tmp_path: Path) -> None:
    py_spy = which("py-spy", path=str(Path(sys.executable).parent))
    if py_spy is None:
        pytest.skip("py-spy is not installed")
    words = [py_spy, "record", "-r", "100", "-f", "raw", "-o", "stacks.txt", "--", sys.executable, str(TRAINING)]
    ended = execute(tmp_path, words, True)
    assert plain_losses() in ended.stdout, ended.stderr
    assert reported_steps(tmp_path) == STEPS
    assert "small_training.py" in (tmp_path / "stacks.txt").read_text()
