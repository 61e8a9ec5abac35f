"""Each way of isolating a trial, on programs that change, remove and start things."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trials.isolation.programs import files  # a program whose files the test prepares
from tests.trials.isolation.snapshots import snapshot
from training_profiler.trials.isolation import Isolation, IsolationError, prepare
from training_profiler.trials.isolation.plan import GUARDED, NAMESPACES, REDIRECTED, SHARED_PROCESSES, WAYS

PROGRAMS = Path(files.__file__).parent
MEMORY = Path("/dev/shm")
TIMEOUT_S = 120


@pytest.fixture(params=[NAMESPACES, GUARDED])
def isolation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Isolation]:
    files.prepare(tmp_path / "user")
    try:
        prepared = prepare(tmp_path / "scratch", ways=[request.param])
    except IsolationError:
        pytest.skip(f"this machine refuses {request.param}")
    yield prepared
    prepared.finish()


def run(isolation: Isolation, root: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "HOME": str(root / "user/home"), "PYTHONPATH": "", **variables}
    return subprocess.run(
        isolation.command([sys.executable, *words]),
        env=isolation.environ(environ),
        cwd=root / "user/project",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def names_in_memory() -> set[str]:
    return set(os.listdir(MEMORY)) if MEMORY.is_dir() else set()


@pytest.mark.parametrize("isolation", WAYS, indirect=True)
def test_a_program_sees_its_changes_and_none_is_there_afterwards(isolation: Isolation, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "user")

    done = run(isolation, tmp_path, str(PROGRAMS / "files.py"))

    report = isolation.finish()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for change in files.CHANGES for word in ("done", change.__name__)]
    assert snapshot(tmp_path / "user") == before
    assert report.left == ()
    assert sorted(os.listdir(tmp_path)) == ["user"]
    assert not Path("/tmp/made by a trial").exists()
    # Its own alone: other tests' programs have shared memory at the same time.
    left_in_memory = re.findall("psm_[0-9a-f]+", done.stderr)
    assert left_in_memory
    assert names_in_memory().isdisjoint(left_in_memory)


@pytest.mark.programs
@pytest.mark.parametrize("isolation", [NAMESPACES, GUARDED], indirect=True)
def test_a_training_resumes_from_the_checkpoint_that_it_overwrites(isolation: Isolation, tmp_path: Path) -> None:
    (tmp_path / "user/project/weights.bin").write_bytes(bytes(16))
    before, in_memory = snapshot(tmp_path / "user"), names_in_memory()

    done = run(isolation, tmp_path, str(PROGRAMS / "training.py"), OMP_NUM_THREADS="1")

    report = isolation.finish()
    assert done.returncode == 0, done.stderr
    assert snapshot(tmp_path / "user") == before
    assert {Path(change.path).name for change in report.changes.named} >= {"checkpoint.pt", "über.pt", "weights.bin"}
    process = done.stdout.split()[1]
    assert [name for name in names_in_memory() - in_memory if name.startswith(f"torch_{process}_")] == []


def test_the_report_names_what_was_written_and_removed(isolation: Isolation, tmp_path: Path) -> None:
    code = "import os; open('log.csv', 'a').write('x'); open('new.txt', 'w').write('12345'); os.remove('checkpoint.pt')"

    assert run(isolation, tmp_path, "-c", code).returncode == 0

    changes = isolation.finish().changes
    work = tmp_path / "user/project"
    mine = {(Path(path).name, size, kind) for path, size, kind in changes.named if Path(path).parent == work}
    assert mine == {("log.csv", 11, "changed"), ("new.txt", 5, "created"), ("checkpoint.pt", 0, "removed")}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root has a right to give up")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing")
def test_a_user_namespace_gives_the_same(tmp_path: Path) -> None:
    test = f"{__file__}::{test_a_program_sees_its_changes_and_none_is_there_afterwards.__name__}[{NAMESPACES}]"
    without_right = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-m", "pytest"]

    done = subprocess.run([*without_right, "-q", "-n0", test], capture_output=True, text=True, timeout=TIMEOUT_S)

    assert done.returncode == 0, done.stdout
    if "1 skipped" in done.stdout:
        pytest.skip("this machine refuses user namespaces")


def test_results_are_handed_over(isolation: Isolation, tmp_path: Path) -> None:
    done = run(isolation, tmp_path, "-c", f"open({str(isolation.results / 'steps')!r}, 'w').write('12')")

    assert done.returncode == 0, done.stderr
    assert (isolation.results / "steps").read_text() == "12"


@pytest.mark.parametrize("isolation", WAYS, indirect=True)
def test_a_daemon_ends_with_the_trial_and_its_port_is_closed(isolation: Isolation, tmp_path: Path) -> None:
    done = run(isolation, tmp_path, str(PROGRAMS / "processes.py"), str(isolation.results))
    port = int((isolation.results / "port").read_text())

    report = isolation.finish()

    assert done.returncode == 0, done.stderr
    assert report.ended == ("sleep 600",)
    assert report.left == ()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("isolation", WAYS, indirect=True)
def test_a_killed_launcher_leaves_no_process(isolation: Isolation, tmp_path: Path) -> None:
    started = isolation.results / "started"
    code = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); print(flush=True); time.sleep(600)"
    command = isolation.command([sys.executable, "-c", code])
    launcher = subprocess.Popen(command, env=isolation.environ(os.environ), stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    with launcher.stdout as output:
        output.readline()
        assert started.exists()
        launcher.kill()
        launcher.wait(TIMEOUT_S)

        report = isolation.finish()

        assert report.left == ()
        assert output.read() == b""  # every process that had it open is gone


def test_the_status_of_the_program_is_that_of_the_command(isolation: Isolation, tmp_path: Path) -> None:
    assert run(isolation, tmp_path, "-c", "raise SystemExit(3)").returncode == 3
    assert run(isolation, tmp_path, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == 137
    assert subprocess.run(isolation.command(["/missing"]), env=isolation.environ({}), stderr=-3).returncode == 127


def test_loopback_is_usable(isolation: Isolation, tmp_path: Path) -> None:
    code = (
        "import socket; server = socket.create_server((socket.gethostbyname('localhost'), 0)); "
        "client = socket.create_connection(server.getsockname()); client.send(b'x'); "
        "assert server.accept()[0].recv(1) == b'x'"
    )

    done = run(isolation, tmp_path, "-c", code)

    assert done.returncode == 0, done.stderr


def test_code_that_is_not_python_changes_nothing(isolation: Isolation, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "user")
    code = (
        "import ctypes, os; os.system('echo x >> log.csv; rm checkpoint.pt; mkdir made'); ctypes.CDLL(None).creat(b'c')"
    )

    run(isolation, tmp_path, "-c", code)

    isolation.finish()
    assert snapshot(tmp_path / "user") == before


def test_a_folder_given_as_writable_keeps_what_is_written(tmp_path: Path) -> None:
    files.prepare(tmp_path / "user")
    cache = tmp_path / "cache"
    cache.mkdir()
    for way in (NAMESPACES, GUARDED):
        isolation = prepare(tmp_path / "scratch", writable=[cache], ways=[way, REDIRECTED])
        done = run(isolation, tmp_path, "-c", f"open({str(cache / way)!r}, 'w').write('kept')")
        isolation.finish()
        assert done.returncode == 0, done.stderr
        assert (cache / way).read_text() == "kept"


def test_a_file_too_large_to_copy_is_refused_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.prepare(tmp_path / "user")
    monkeypatch.setattr("training_profiler.trials.isolation.isolation.SHARE_OF_FREE_SPACE", 1e-6)
    large = tmp_path / "user/project/large.bin"
    with open(large, "wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).free // 10_000)  # sparse
    before = snapshot(tmp_path / "user")
    for way, reason in ((NAMESPACES, "File too large"), (GUARDED, "copies no file of more than")):
        isolation = prepare(tmp_path / "scratch", ways=[way, REDIRECTED])
        read = "open('large.bin', 'rb').read(10); "
        done = run(isolation, tmp_path, "-c", read + "open('large.bin', 'ab')")
        assert isolation.finish().left == ()
        assert done.returncode == 1
        assert reason in done.stderr or (isolation.way == REDIRECTED and "copies no file" in done.stderr)
        assert snapshot(tmp_path / "user") == before


def test_the_strongest_way_that_works_is_taken(tmp_path: Path) -> None:
    works = []
    for way in WAYS:
        try:
            prepare(tmp_path / "scratch", ways=[way]).finish()
            works.append(way)
        except IsolationError:
            assert not (tmp_path / "scratch").exists()
    isolation = prepare(tmp_path / "scratch")

    assert isolation.way == works[0]
    isolation.finish()
    assert REDIRECTED in works


def test_no_way_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="cannot be kept apart"):
        prepare(tmp_path / "scratch", ways=[])
    assert list(tmp_path.iterdir()) == []


def test_a_launch_within_a_launch_keeps_the_python_path(tmp_path: Path) -> None:
    isolation = prepare(tmp_path / "scratch", ways=[SHARED_PROCESSES, REDIRECTED])

    once = isolation.environ({"PYTHONPATH": "mine"})

    assert once["PYTHONPATH"].split(os.pathsep)[1:] == ["mine"]
    assert isolation.environ(once) == once
    assert os.pathsep not in isolation.environ({"PYTHONPATH": ""})["PYTHONPATH"]
    isolation.finish()
