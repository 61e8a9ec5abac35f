"""Each way of isolating a trial, on programs that change, remove and start things."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.trials.programs import files  # a program whose files the test prepares
from tests.trials.snapshots import snapshot
from training_profiler.base.units import BYTES_PER_GIB
from training_profiler.trials.isolated_program import (
    GUARDED,
    NAMESPACES,
    SHARED_PROCESSES,
    UNGUARDED,
    WAYS,
    WAYS_WITH_WRITES,
    Plan,
    copy_folder,
)
from training_profiler.trials.isolation import (
    LOCK,
    PREFIX,
    TRACKERS,
    Isolation,
    IsolationError,
    offline,
    prepare,
    promise,
    scratch_folder,
    trackers_of,
)
from training_profiler.trials.namespaces import NOT_STORED, read_mounts

PROGRAMS = Path(files.__file__).parent
MEMORY = Path("/dev/shm")
TIMEOUT_S = 240
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
    launcher = subprocess.Popen(
        command, env=isolation.environ(os.environ), cwd=tmp_path / "user/project", stdout=subprocess.PIPE
    )
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
def test_the_status_of_the_program_is_that_of_the_command(
    isolation: Isolation, tmp_path: Path, words: list[str], status: int
) -> None:
    environment = isolation.environ(os.environ)
    done = subprocess.run(isolation.command(words), env=environment, cwd=tmp_path / "user/project", capture_output=True)

    assert done.returncode == status


def test_code_that_is_not_python_changes_nothing(isolation: Isolation, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "user")
    code = (
        "import ctypes, os; os.system('echo x >> log.csv; rm checkpoint.pt; mkdir made'); ctypes.CDLL(None).creat(b'c')"
    )
    run(isolation, tmp_path, "-c", code)
    isolation.finish()
    assert snapshot(tmp_path / "user") == before


def test_loopback_is_usable_and_results_are_handed_over(isolation: Isolation, tmp_path: Path) -> None:
    code = (
        "import socket; server = socket.create_server((socket.gethostbyname('localhost'), 0)); "
        "client = socket.create_connection(server.getsockname()); client.send(b'x'); "
        "assert server.accept()[0].recv(1) == b'x'; "
        f"open({str(isolation.results / 'steps')!r}, 'w').write('12')"
    )
    done = run(isolation, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert (isolation.results / "steps").read_text() == "12"


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
    monkeypatch.setattr("training_profiler.trials.isolated_program.MOST_ENTRIES", 6)
    monkeypatch.setattr("training_profiler.trials.isolated_program.MOST_BYTES", 200)

    copied = Path(copy_folder(str(tmp_path / "user/project"), str(tmp_path / "copy"), str(tmp_path / "copy")))

    linked = {path.name for path in copied.iterdir() if path.is_symlink() and path.readlink().is_absolute()}
    assert linked == {"out", "plain.txt", "runs.db"}
    assert (copied / "plain.txt").read_text() == "as it was"


def test_a_file_too_large_to_copy_is_refused_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.prepare(tmp_path / "user")
    monkeypatch.setattr("training_profiler.trials.isolation.SHARE_OF_FREE_SPACE", 1e-6)
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


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:2 - proc proc rw
24 22 0:50 / /home/me/my\\040data rw - nfs4 server:/data rw
25 22 0:51 / /mnt rw master:3 propagate_from:1 - ext4 /dev/vdb rw
26 22 0:52 / /mnt rw - tmpfs tmpfs rw
"""


def test_mounts_are_read_by_their_folder_and_the_last_one_counts_and_some_store_nothing() -> None:
    assert all(NOT_STORED.fullmatch(kind) for kind in ("proc", "sysfs", "cgroup", "cgroup2", "devpts"))
    assert not any(NOT_STORED.fullmatch(kind) for kind in ("", "ext4", "tmpfs", "nfs4", "overlay", "fuse.sshfs"))
    assert read_mounts(MOUNTS) == {
        "/": "ext4",
        "/proc": "proc",
        "/home/me/my data": "nfs4",
        "/mnt": "tmpfs",
    }


def promised(way: str, *modules: str, in_memory: bool = False) -> str:
    plan = Plan(way, "/scratch", (), in_memory, 8 * BYTES_PER_GIB)
    found = [tracker for tracker in TRACKERS if tracker.module in modules]
    return promise(plan, found, 32 * BYTES_PER_GIB).replace("\n", " ")


@pytest.mark.parametrize("way", ALL_WAYS)
def test_a_promise_is_what_holds_the_limits_and_each_tracker_by_what_holds_it(way: str) -> None:
    text = promised(way, "wandb", "comet_ml", "aim")
    assert ("Your files stay as they are" in text) == (way != UNGUARDED)
    assert ("the kernel refuses" in text) == (way == GUARDED)
    assert ("Not promised here: what it writes elsewhere stays" in text) == (way == UNGUARDED)
    assert "A trial writes to 32 GiB of free disk, at most 8.0 GiB a file." in text
    assert "A trial writes to memory" in promised(way, in_memory=True)
    assert "Kept offline: W&B." in text
    assert "Asked to stay offline by a variable, which the program can overrule: Comet." in text
    assert "Not held back: Aim." in text
    assert "imports none of the known trackers" in promised(way)
    unknown = promise(Plan(way, "/s", (), False, 1), None, 1)
    assert unknown.endswith("sends over the network.")
    assert max(map(len, unknown.splitlines())) < 80


def test_trackers_are_found_in_modules_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from package import logs\nimport helper, train\ndef f():\n    import wandb.sdk\n"
    )
    (tmp_path / "helper.py").write_text("import neptune\nimport missing_module")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/logs.py").write_text("from mlflow import log_metric")
    (tmp_path / "unused.py").write_text("import clearml")

    assert [tracker.module for tracker in trackers_of(tmp_path / "train.py")] == ["wandb", "mlflow", "neptune"]
    assert trackers_of(tmp_path / "missing.py") == []
    assert offline({})["WANDB_MODE"] == offline({"WANDB_MODE": "online"})["WANDB_MODE"] == "offline"
    assert "WANDB_MODE" not in offline({"WANDB_MODE": "disabled"})  # and stays so


HOLD = (
    "import sys; from pathlib import Path; from training_profiler.trials.isolation import scratch_folder\n"
    "with scratch_folder(Path(sys.argv[1])) as folder:\n"
    "    (folder / 'layer').mkdir(); (folder / 'layer' / 'model.pt').touch(); print(folder, flush=True)\n"
    "    sys.stdin.read()"
)


@pytest.fixture
def other_session(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.usefixtures("other_session")
def test_the_folder_of_a_session_that_runs_stays(tmp_path: Path) -> None:
    (theirs,) = tmp_path.iterdir()
    with scratch_folder(tmp_path) as folder:
        assert set(tmp_path.iterdir()) == {theirs, folder}
        assert (theirs / "layer" / "model.pt").exists()
    assert list(tmp_path.iterdir()) == [theirs]


def test_a_session_removes_its_folder_and_what_is_not_a_killed_session_s_stays(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "0").mkdir()
        assert (folder.parent, folder.name.startswith(PREFIX)) == (tmp_path, True)
    assert list(tmp_path.iterdir()) == []
    linked = tmp_path / "elsewhere"
    linked.mkdir()
    (linked / LOCK).touch()
    (tmp_path / (PREFIX + "link")).symlink_to(linked)
    (tmp_path / (PREFIX + "file")).touch()
    (tmp_path / (PREFIX + "begun")).mkdir()  # another session makes its lock in a moment
    before = sorted(tmp_path.iterdir())
    with scratch_folder(tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == before
    assert (linked / LOCK).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to someone else")
def test_the_folder_of_another_user_stays(tmp_path: Path, other_session: "subprocess.Popen[str]") -> None:
    (theirs,) = tmp_path.iterdir()
    other_session.kill()
    other_session.wait()
    os.chown(theirs, 12345, 12345)
    with scratch_folder(tmp_path):
        pass
    assert theirs.exists()


def test_processes_and_temporary_files_of_a_killed_session_s_trainings_go(
    tmp_path: Path, other_session: "subprocess.Popen[str]"
) -> None:
    (theirs,) = tmp_path.iterdir()
    isolation = prepare(theirs / "0", ways=(UNGUARDED,))
    environment = isolation.environ(os.environ)
    temporary = Path(environment["TMPDIR"])
    left = subprocess.Popen(["sleep", "600"], env=environment)
    other_session.kill()
    other_session.wait()
    with scratch_folder(tmp_path):
        pass
    left.wait(TIMEOUT_S)
    assert not psutil.pid_exists(left.pid)
    assert not temporary.exists()
    assert list(tmp_path.iterdir()) == []  # with the folder of the session
