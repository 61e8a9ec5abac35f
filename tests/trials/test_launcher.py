"""How the trainings of a session are started, and what ends the wait for them."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from training_profiler.trials import launcher
from training_profiler.trials.launcher import (
    ASKED_TO_END,
    DiskSpaceError,
    Interruption,
    Launcher,
    Program,
    with_variables,
)


def test_a_library_to_load_goes_before_those_of_the_user():
    found = with_variables({"LD_PRELOAD": "libmine.so", "A": "1"}, {"LD_PRELOAD": "libjemalloc.so", "B": "2"})
    assert found == {"LD_PRELOAD": "libjemalloc.so:libmine.so", "A": "1", "B": "2"}
    added = {"LD_PRELOAD": "x.so", "A": "2"}
    assert with_variables({"LD_PRELOAD": "", "A": "1"}, added) == added


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

    def show(self, files):
        assert files == ()

    def command(self, words):
        return words

    def environ(self, environment):
        return environment

    def finish(self):
        return ()


def test_the_session_ends_when_a_quarter_of_the_free_space_is_left_while_any_training_runs(tmp_path, monkeypatch):
    free_gib = iter((100, 60, 25, 24.9))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=int(next(free_gib) * 2**30)))
    monkeypatch.setattr(launcher, "prepare", lambda scratch, script, ways: NoIsolation(tmp_path))
    program = Program([sys.executable, "-c", "import time; time.sleep(60)"], True, "train.py")
    training = Launcher(program, tmp_path, "no table").start((), 3)
    try:
        with pytest.raises(DiskSpaceError, match=r"had 100\.0 GiB free, and has 24\.9 GiB; TMPDIR"):
            training.process.wait_for_block(60)
        assert next(free_gib, None) is None
    finally:
        training.close()


@pytest.mark.parametrize("number", ASKED_TO_END)
def test_a_request_to_end_is_raised_where_it_is_asked_for_and_further_ones_change_nothing(number):
    before = signal.signal(number, signal.default_int_handler)  # under nohup, SIGHUP is ignored
    try:
        with Interruption() as interruption:
            interruption.check()
            for _ in range(3):
                os.kill(os.getpid(), number)
            assert interruption.has_come
            with pytest.raises(KeyboardInterrupt):
                interruption.check()
        assert signal.getsignal(number) is signal.default_int_handler
        signal.signal(number, signal.SIG_IGN)
        with Interruption() as interruption:
            os.kill(os.getpid(), number)
        assert (interruption.has_come, signal.getsignal(number)) == (False, signal.SIG_IGN)
    finally:
        signal.signal(number, before)
