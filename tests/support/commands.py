"""Calls of the command line in this process."""

import pytest

from training_profiler.cli import main


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return what a command has printed that succeeds."""
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line in which a command refuses what it was given."""
    capsys.readouterr()
    assert main([*map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err
