"""``training-profiler run``: a program runs exactly as it does without the profiler."""

import json
import os
import pickle
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.launching import NOTHING, RUN, Ended, execute, execute_forked, stand_ins, through_run
from tests.system.scripts import ROOT, SWITCH, TIMEOUT_S, command, environment
from training_profiler.base.switch import start_up_file

# Prints what a program can learn about itself, and a class pickled in __main__.
LOOK = """
import json, os, pickle, sys
names = sorted(dir())
class Point:
    pass
print(json.dumps({
    "argv": sys.argv, "names": names, "name": __name__, "file": globals().get("__file__"), "path": sys.path,
    "package": __package__, "spec": __spec__ and __spec__.name, "flags": str(sys.flags), "stdin": sys.stdin.read(),
    "orig_argv": sys.orig_argv[1:], "cwd": os.getcwd(), "encoding": sys.stdout.encoding,
    "executable": sys.executable, "line_buffering": sys.stdout.line_buffering,
    "main": sys.modules["__main__"].__dict__ is globals(), "pickle": pickle.dumps(Point()).hex(),
    "sitecustomize": str(sys.modules.get("sitecustomize")), "locale": os.environ.get("LC_CTYPE"),
}))
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Make a folder with the same program as script, executable, module, package and folder."""
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "without_ending").write_text(LOOK)
    executable = tmp_path / "look"
    executable.write_text(f"#!{sys.executable}\n{LOOK}")
    executable.chmod(0o755)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    for path in ("package/module.py", "package/__main__.py"):
        (tmp_path / path).write_text(LOOK)
    return tmp_path


def both(cwd: Path, plain: list[str], *words: str, **options: object) -> tuple[Ended, Ended]:
    return execute(cwd, plain, **options), execute(cwd, through_run(*words), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words",
    [
        ["look.py"],
        ["look.py", "--lr", "1e-3", "--help", "--", "-m", "", "two words", "run"],
        ["./look.py", "-I"],
        ["without_ending", "a"],
        ["-m", "package.module", "-x"],
        ["-mpackage"],
        ["package", "a"],
        ["-c", LOOK, "a", "-b"],
        ["-u", "look.py"],
        ["-Xutf8", "-W", "ignore", "-O", "look.py"],
    ],
    ids=" ".join,
)
def test_python_program_sees_its_usual_environment(programs: Path, words: list[str]) -> None:
    plain, ours = both(programs, [sys.executable, *words], *words, input="some\ninput")
    assert plain.status == 0
    assert ours == plain._replace(stderr=plain.stderr + NOTHING)
    if words[0] == "look.py":  # after two dashes, the rest is the program, too
        assert execute(programs, through_run("--", *words), input="some\ninput").stdout == plain.stdout


def test_command_sees_its_usual_environment(programs: Path) -> None:
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    for words in (["./look", "a"], ["look", "-m"], ["python", "-u", "look.py"], [sys.executable, "look.py"]):
        plain, ours = both(programs, words, *words, variables={"PATH": path})
        assert plain.status == 0
        assert ours == plain._replace(stderr=NOTHING)


@pytest.mark.parametrize("variables", [{}, {"LANG": "C"}, {"LC_CTYPE": "C.UTF-8"}, {"PYTHONUTF8": "1"}], ids=str)
def test_locale_is_unchanged(programs: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)
    plain, ours = both(programs, [sys.executable, "look.py"], "look.py", variables=variables)
    assert ours.stdout == plain.stdout


@pytest.mark.parametrize(
    "script",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no data')",
        "def f(): raise ValueError('bad')\nf()",
        "x = = 1",
        "import no_such_module",
        "try: 1 / 0\nexcept Exception as e: raise KeyError('k') from e",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os._exit(7)",
        "import os; os.abort()",
    ],
)
def test_program_ends_as_usual(tmp_path: Path, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    plain, ours = both(tmp_path, [sys.executable, "train.py"], "train.py")
    assert plain.status != 0
    assert (ours.status, ours.stdout) == (plain.status, plain.stdout)
    assert ours.stderr == plain.stderr + (NOTHING if "sys.exit" in script else "")


@pytest.mark.parametrize(
    "words", [["missing.py"], ["folder"], ["-m", "no.such.module"], ["missing"], ["-Q"]], ids=" ".join
)
def test_python_reports_what_it_cannot_run(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    plain, ours = both(tmp_path, [sys.executable, *words], *words)
    assert plain.status in (1, 2)
    assert (ours.status, ours.stdout) == (plain.status, plain.stdout)
    assert ours.stderr in (plain.stderr, plain.stderr + NOTHING)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGPIPE"])
def test_signals_have_their_usual_effect(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{name})\nprint('alive')\n")
    plain, ours = both(tmp_path, [sys.executable, "train.py"], "train.py")
    assert (ours.status, ours.stdout) == (plain.status, plain.stdout)
    assert plain.status == (0 if name == "SIGPIPE" else -getattr(signal, name))
    assert ours.stderr == plain.stderr + (NOTHING if name == "SIGPIPE" else "")


def test_ignored_signals_are_restored_for_other_programs(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    words = ["grep", "Sig", "/proc/self/status"]
    plain, ours = both(tmp_path, words, *words)
    assert ours == plain


def test_no_extra_process_remains_and_a_terminal_stays_one(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    command = through_run("-c", "import os, sys; print(sys.stdin.isatty(), sys.stdout.isatty(), os.getpid())")
    try:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(None), stdin=inner, stdout=inner)
        assert process.wait(TIMEOUT_S) == 0
        assert os.read(outer, 100).decode().split() == ["True", "True", str(process.pid)]
    finally:
        os.close(outer)
        os.close(inner)


CHILDREN = """
import multiprocessing, os, pickle, sys
class Point:
    def __init__(self, x): self.x = x
def double(point): return Point(2 * point.x)
if __name__ == "__main__":
    for method in ("spawn", "fork"):
        sys.stdout.flush()
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, [point.x for point in pool.map(double, map(Point, range(3)))])
    pickle.dump(Point(5), open("point.pickle", "wb"))
    sys.stdout.flush()
    pid = os.fork()
    if not pid: sys.exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_children_and_pickles_work_silently(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHILDREN)
    ours = execute(tmp_path, through_run("train.py"))
    assert ours == Ended(0, "spawn [0, 2, 4]\nfork [0, 2, 4]\n4\n", NOTHING)
    assert b"__main__" in (tmp_path / "point.pickle").read_bytes()
    with pytest.raises(AttributeError):  # it was pickled as a class of another __main__
        pickle.loads((tmp_path / "point.pickle").read_bytes())


@pytest.mark.parametrize(
    ("options", "named", "does"),
    [
        (["-I"], "-I", "ignores PYTHONPATH"),
        (["-uE"], "-E", "ignores PYTHONPATH"),
        (["-W", "ignore", "-S"], "-S", "skips sitecustomize"),
    ],
)
def test_isolating_options_are_reported(tmp_path: Path, options: list[str], named: str, does: str) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)")
    if named != "-S" and start_up_file() is not None:
        ours = execute(tmp_path, through_run(*options, "train.py", "a"))
        assert ours == Ended(0, "['train.py', 'a']\n", NOTHING)  # the start-up file armed it all the same
        return
    expected = (
        f"training-profiler: nothing will be measured: python {named} {does}, "
        "through which the profiler enters the program; remove the option\n"
    )
    for words in ([*options, "train.py", "a"], [sys.executable, *options, "train.py", "a"]):
        assert execute(tmp_path, through_run(*words)) == Ended(0, "['train.py', 'a']\n", expected)
    command = tmp_path / "tool"
    command.write_text(f"#!{sys.executable} {options[-1]}\nprint('done')\n")
    command.chmod(0o755)
    assert execute(tmp_path, through_run("./tool")) == Ended(0, "done\n", expected)


@pytest.mark.parametrize(
    ("first_line", "mode", "status", "why"),
    [
        ("#!/bin/sh", 0o644, 126, "Permission denied"),
        ("no first line of any kind", 0o755, 126, "Exec format error"),
        ("#!/no/such/shell", 0o755, 127, "the interpreter in its first line does not exist"),
    ],
)
def test_unexecutable_command_is_one_line(tmp_path: Path, first_line: str, mode: int, status: int, why: str) -> None:
    if os.geteuid() == 0 and mode == 0o644:
        assert not os.access(__file__, os.X_OK)  # even root can only execute files with an execute bit
    (tmp_path / "train.sh").write_text(first_line + "\n")
    (tmp_path / "train.sh").chmod(mode)
    ours = execute(tmp_path, through_run("./train.sh"))
    assert ours == Ended(status, "", f"training-profiler: ./train.sh cannot be executed: {why}\n")


def test_help_lists_all_commands_and_a_missing_program_is_one_line(tmp_path: Path) -> None:
    outcome = execute(tmp_path, [sys.executable, "-c", RUN, "--help"])
    assert outcome.status == 0
    for name in ("run", "report", "env"):
        assert f"\n    {name} " in outcome.stdout
    assert "training-profiler run torchrun" in execute(tmp_path, through_run("--help")).stdout
    expected = "training-profiler: run needs a program; example: training-profiler run train.py --lr 1e-3\n"
    for words in ((), ("--",)):
        assert execute(tmp_path, through_run(*words)) == Ended(2, "", expected)


@pytest.mark.parametrize("variable", ["RECTIFIED_FLOW_PROFILE", "RECTIFIED_FLOW_PROFILE_LOG_EVERY"])
def test_wrong_setting_is_reported_before_the_program_starts(tmp_path: Path, variable: str) -> None:
    command = [sys.executable, "-m", "training_profiler", "run", "-c", "print('started')"]
    ours = execute(tmp_path, command, pythonpath=str(ROOT), variables={variable: "maybe"})
    assert (ours.status, ours.stdout) == (2, "")
    assert ours.stderr.startswith(f"training-profiler: {variable}='maybe' is ")
    assert len(ours.stderr.splitlines()) == 1


def test_flags_before_the_program_are_settings(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = ["--quiet", "--dir", "out", "--name=baseline", "--no-flops", "train.py", "--log-every", "x"]
    ours = execute(tmp_path, through_run(*words))
    plain = execute_forked(tmp_path, "train.py", is_profiled=False)
    assert (ours.status, ours.stderr) == (0, "")
    assert ours.stdout.startswith(plain.stdout + "\n=== Final Profiling Summary (5 steps) ===")
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name.endswith("-baseline")
    settings = json.loads((folder / "meta.json").read_text())["settings"]
    assert (settings["log_every"], settings["flops"], settings["name"]) == (0, False, "baseline")
    report = execute(tmp_path, [sys.executable, "-c", RUN, "report", "baseline"], variables={f"{SWITCH}_DIR": "out"})
    assert report.stderr == f"training-profiler: reporting the run baseline: out/{folder.name}\n"
    assert "=== Final Profiling Summary (5 steps) ===" in report.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["repot"], "repot is not a command; did you mean report?"),
        (["train.py", "--lr", "3"], "train.py is not a command; did you mean: training-profiler run train.py --lr 3"),
        (["--versoin"], "--versoin is not an option of training-profiler itself; did you mean --version?"),
        (
            ["-V"],
            "-V is not an option of training-profiler itself; options come after a command: training-profiler "
            "report --html",
        ),
        (["run", "--log-evry", "3"], "--log-evry is not a flag of run; did you mean --log-every?"),
    ],
)
def test_wrong_word_suggests_the_nearest(tmp_path: Path, words: list[str], message: str) -> None:
    outcome = command(tmp_path, *words)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (2, "", f"training-profiler: {message}\n")
    option = command(tmp_path, "report", "--jsn")
    assert option.status == 2
    assert option.stderr.endswith("unrecognized arguments: --jsn; did you mean --json?\n")


def test_launcher_loads_neither_numpy_nor_argparse(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "training_profiler", "run", "true"]
    ours = execute(tmp_path, command, profile="1", pythonpath=str(ROOT))
    assert ours.status == 0
    loaded = {line.rpartition("|")[2].strip() for line in ours.stderr.splitlines()}
    assert "signal" in loaded  # which only cli.run needs
    assert not loaded & {"numpy", "argparse", "dataclasses", "training_profiler.api", "training_profiler.cli.report"}


def test_profile_training_with_a_program_is_the_same(programs: Path) -> None:
    for words in (["look.py", "-a"], ["-m", "package"]):
        plain, ours = both(programs, [sys.executable, *words], *words)
        same = execute(programs, [sys.executable, str(ROOT / "profile_training.py"), *words], profile="1")
        assert same == ours == plain._replace(stderr=NOTHING)


LAUNCHED = """
import os, torch
os.write(1, f"rank {os.environ.get('RANK')}\\n".encode())
"""
LIVE = """
import os
def start_instrumentation(begin_ns, imported, is_requested):
    os.write(1, ("watched " + str(os.environ.get("RANK")) + "\\n").encode())
def why_nothing():
    return "it was only a test"
"""


@pytest.mark.programs
def test_a_nested_run_and_every_rank_of_torchrun_are_profiled_and_one_reports(tmp_path: Path) -> None:
    inner = through_run("-c", "import os; print(os.environ['PYTHONPATH'].count('bootstrap'))")
    assert execute(tmp_path, through_run(*inner)).stdout == "1\n"
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("torchrun is not installed here")
    (tmp_path / "train.py").write_text(LAUNCHED)
    folder = stand_ins(tmp_path, live=LIVE)
    shutil.rmtree(Path(folder) / "torch")  # the real one
    words = [str(torchrun), "--standalone", "--nproc_per_node=2", "train.py"]
    ours = execute(tmp_path, through_run(*words), pythonpath=folder, variables={"OMP_NUM_THREADS": "1"})
    assert ours.status == 0
    expected = ["rank 0", "rank 1", "watched 0", "watched 1"]  # and not torchrun itself
    assert sorted(ours.stdout.splitlines()) == expected
    assert ours.stderr.count("training_profiler: nothing measured: no process that torchrun started has trained\n") == 1


TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_unmodified_training_is_profiled_and_computes_the_same_also_in_a_child(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "start.py").write_text("import subprocess, sys; subprocess.run([sys.executable, 'train.py'])")
    plain = execute_forked(tmp_path, "train.py", is_profiled=False)
    first, *others = plain.stdout.splitlines()
    for program in ("train.py", "start.py"):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        ours = execute(tmp_path, through_run(program))
        assert (ours.status, ours.stderr) == (0, "")
        opening, *lines = [line for line in ours.stdout.splitlines() if line != first]
        assert re.fullmatch(r"Profiler: on, run folder runs/\d{8}-\d{6}", opening)
        assert lines[: len(others)] == others
        assert ours.stdout.count("=== Final Profiling Summary (5 steps) ===") == 1
        (folder,) = (tmp_path / "runs").glob("2*")
        assert json.loads((folder / "meta.json").read_text())["launch"]


@pytest.mark.programs
def test_open_file_of_the_script_is_flushed_at_its_end(tmp_path: Path) -> None:
    # The interpreter flushes it when it collects the script's globals, so the profiler must not hold a class of it.
    classes = """
class Model(torch.nn.Linear):
    def forward(self, rows):
        return super().forward(rows)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones(4)
rows = open("rows.txt", "w")
"""
    script = TRAINING.replace("import torch\n", "import torch\n" + classes).replace(
        "torch.nn.Linear(4, 1)", "Model(4, 1)"
    )
    script += "    rows.write('a row\\n')\n"
    script += "for batch in torch.utils.data.DataLoader(Rows()):\n    model(batch).sum().backward()\n"
    (tmp_path / "train.py").write_text(script)
    ours = execute(tmp_path, through_run("train.py"))
    assert (ours.status, ours.stderr) == (0, "")
    assert (tmp_path / "rows.txt").read_text() == "a row\n" * 5
