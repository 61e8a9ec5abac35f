"""How the trainings of a session are started."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from training_profiler.trials import launcher
from training_profiler.trials.disk import DiskSpaceError
from training_profiler.trials.launcher import Launcher, Program, with_variables


def test_a_library_to_load_goes_before_those_of_the_user():
    found = with_variables({"LD_PRELOAD": "libmine.so", "A": "1"}, {"LD_PRELOAD": "libjemalloc.so", "B": "2"})
    assert found == {"LD_PRELOAD": "libjemalloc.so:libmine.so", "A": "1", "B": "2"}


def test_a_variable_of_a_change_wins():
    assert with_variables({"LD_PRELOAD": "", "A": "1"}, {"LD_PRELOAD": "x.so", "A": "2"}) == {
        "LD_PRELOAD": "x.so",
        "A": "2",
    }


def test_the_script_is_the_first_python_file_among_the_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert Program(["python", "train.py", "other.py"], True, "train.py").script == Path("train.py")
    assert Program(["torchrun", "--nproc_per_node=2", "train.py"], False, "train.py").script == Path("train.py")
    assert Program(["python", "-m", "package"], True, "package").script is None
    assert Program(["python", "gone.py"], True, "gone.py").script is None


class NoIsolation:
    """A training that is not kept apart."""

    promise = ""

    def __init__(self, results):
        self.results = results

    def command(self, words):
        return words

    def environ(self, environment):
        return environment

    def finish(self):
        return ()


def test_the_space_is_watched_while_any_training_of_the_session_runs(tmp_path, monkeypatch):
    free_bytes = iter([100, 10])
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=next(free_bytes)))
    monkeypatch.setattr(launcher, "prepare", lambda scratch, script, ways: NoIsolation(tmp_path))
    training = Launcher(Program([sys.executable, "-c", "pass"], True, "train.py"), tmp_path, "no table").start((), 3)
    try:
        with pytest.raises(DiskSpaceError):
            training.process.wait_for_block(60)
    finally:
        training.close()
