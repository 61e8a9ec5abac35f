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
from training_profiler.trials.isolation.copied_folder import copy_folder
from training_profiler.trials.isolation.isolation import Isolation, IsolationError, prepare
from training_profiler.trials.isolation.plan import (
    GUARDED,
    NAMESPACES,
    SHARED_PROCESSES,
    UNGUARDED,
    WAYS,
    WAYS_WITH_WRITES,
)

PROGRAMS = Path(files.__file__).parent
MEMORY = Path("/dev/shm")
TIMEOUT_S = 120
ALL_WAYS = [NAMESPACES, SHARED_PROCESSES, GUARDED, UNGUARDED]


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


@pytest.mark.parametrize("isolation", ALL_WAYS, indirect=True)
def test_a_program_sees_its_changes_and_none_is_there_afterwards(isolation: Isolation, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "user")

    outside = [] if isolation.way in (GUARDED, UNGUARDED) else ["outside"]

    done = run(isolation, tmp_path, str(PROGRAMS / "files.py"), *outside)

    left = isolation.finish()
    changes = [*files.CHANGES, *(files.OUTSIDE if outside else [])]
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for change in changes for word in ("done", change.__name__)]
    assert snapshot(tmp_path / "user") == before
    assert left == ()
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

    isolation.finish()
    assert done.returncode == 0, done.stderr
    assert snapshot(tmp_path / "user") == before
    process = done.stdout.split()[1]
    assert [name for name in names_in_memory() - in_memory if name.startswith(f"torch_{process}_")] == []


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


@pytest.mark.parametrize("isolation", ALL_WAYS, indirect=True)
def test_a_daemon_ends_with_the_trial_and_its_port_is_closed(isolation: Isolation, tmp_path: Path) -> None:
    done = run(isolation, tmp_path, str(PROGRAMS / "processes.py"), str(isolation.results))
    port = int((isolation.results / "port").read_text())

    left = isolation.finish()

    assert done.returncode == 0, done.stderr
    assert left == ()
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("isolation", ALL_WAYS, indirect=True)
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

        assert isolation.finish() == ()
        assert output.read() == b""  # every process that had it open is gone


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([sys.executable, "-c", "raise SystemExit(3)"], 3),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], 137),
        (["/missing"], 127),
    ],
)
def test_the_status_of_the_program_is_that_of_the_command(isolation: Isolation, words: list[str], status: int) -> None:
    done = subprocess.run(isolation.command(words), env=isolation.environ(os.environ), capture_output=True)

    assert done.returncode == status


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


@pytest.mark.parametrize("isolation", [GUARDED, UNGUARDED], indirect=True)
def test_in_a_copy_what_is_written_elsewhere_is_refused_unless_the_user_allows_it(
    isolation: Isolation, tmp_path: Path
) -> None:
    done = run(isolation, tmp_path, "-c", "print(open('../elsewhere/d.txt').read()); open('../elsewhere/new', 'w')")

    isolation.finish()
    assert done.stdout == "as it was\n"
    assert ("Permission denied" in done.stderr) == (isolation.way == GUARDED)
    assert (tmp_path / "user/elsewhere/new").exists() == (isolation.way == UNGUARDED)


def test_arguments_lead_into_the_copy_and_files_of_the_trial_name_the_original(tmp_path: Path) -> None:
    files.prepare(tmp_path / "user")
    isolation = prepare(tmp_path / "scratch", ways=[UNGUARDED])
    script = tmp_path / "user/project/x.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write(__file__)")

    done = run(isolation, tmp_path, str(script), str(isolation.results / "run.jsonl"))

    assert done.returncode == 0, done.stderr
    assert (isolation.results / "run.jsonl").read_text() != str(script)
    isolation.name_originals(isolation.results)
    assert (isolation.results / "run.jsonl").read_text() == str(script)
    isolation.finish()


def test_a_large_folder_is_linked_from_where_the_limit_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.prepare(tmp_path / "user")
    monkeypatch.setattr("training_profiler.trials.isolation.copied_folder.MOST_ENTRIES", 6)
    monkeypatch.setattr("training_profiler.trials.isolation.copied_folder.MOST_BYTES", 200)

    copied = Path(copy_folder(str(tmp_path / "user/project"), str(tmp_path / "copy"), str(tmp_path / "copy")))

    linked = {path.name for path in copied.iterdir() if path.is_symlink() and path.readlink().is_absolute()}
    assert linked == {"out", "plain.txt", "runs.db"}
    assert (copied / "plain.txt").read_text() == "as it was"


def test_a_file_too_large_to_copy_is_refused_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.prepare(tmp_path / "user")
    monkeypatch.setattr("training_profiler.trials.isolation.isolation.SHARE_OF_FREE_SPACE", 1e-6)
    large = tmp_path / "user/project/large.bin"
    with open(large, "wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).free // 10_000)  # sparse
    before = snapshot(tmp_path / "user")
    isolation = prepare(tmp_path / "scratch", ways=[NAMESPACES, UNGUARDED])
    done = run(isolation, tmp_path, "-c", "open('large.bin', 'rb').read(10); open('large.bin', 'ab').write(b'x')")
    assert isolation.finish() == ()
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert snapshot(tmp_path / "user") == before


def test_the_strongest_way_that_works_is_taken(tmp_path: Path) -> None:
    works = []
    for way in WAYS_WITH_WRITES:
        try:
            prepare(tmp_path / "scratch", ways=[way]).finish()
            works.append(way)
        except IsolationError:
            assert not (tmp_path / "scratch").exists()
    isolation = prepare(tmp_path / "scratch", ways=WAYS_WITH_WRITES)

    assert isolation.way == works[0]
    isolation.finish()
    assert works[-1] == UNGUARDED
    assert UNGUARDED not in WAYS


def test_no_way_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match=r"cannot be kept apart.* with --allow-writes"):
        prepare(tmp_path / "scratch", ways=[])
    assert list(tmp_path.iterdir()) == []


def test_a_launch_within_a_launch_keeps_the_python_path(tmp_path: Path) -> None:
    isolation = prepare(tmp_path / "scratch", ways=[SHARED_PROCESSES, UNGUARDED])

    once = isolation.environ({"PYTHONPATH": "mine"})

    assert once["PYTHONPATH"].split(os.pathsep)[1:] == ["mine"]
    assert isolation.environ(once) == once
    assert os.pathsep not in isolation.environ({"PYTHONPATH": ""})["PYTHONPATH"]
    isolation.finish()
