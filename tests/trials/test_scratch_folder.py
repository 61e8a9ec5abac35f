"""A session's scratch folder, and what killed sessions have left of theirs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from training_profiler.trials.isolation.isolation import prepare
from training_profiler.trials.isolation.plan import UNGUARDED
from training_profiler.trials.scratch_folder import LOCK, PREFIX, scratch_folder

HOLD = (
    "import sys; from pathlib import Path; from training_profiler.trials.scratch_folder import scratch_folder\n"
    "with scratch_folder(Path(sys.argv[1])) as folder:\n"
    "    (folder / 'layer').mkdir(); (folder / 'layer' / 'model.pt').touch(); print(folder, flush=True)\n"
    "    sys.stdin.read()"
)


def test_a_session_removes_its_folder(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "0").mkdir()
        assert folder.parent == tmp_path
        assert folder.name.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == []


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


def test_the_folder_of_a_killed_session_goes(tmp_path: Path, other_session: "subprocess.Popen[str]") -> None:
    (theirs,) = tmp_path.iterdir()
    other_session.kill()
    other_session.wait()
    with scratch_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert not theirs.exists()


def test_what_is_not_a_killed_session_s_stays(tmp_path: Path) -> None:
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
    left.wait(10)
    assert not psutil.pid_exists(left.pid)
    assert not temporary.exists()
    assert list(tmp_path.iterdir()) == []
