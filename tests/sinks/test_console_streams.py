"""The terminal's stream may be in the middle of something when a report is printed."""

import io
import sys

from training_profiler.sinks.console import Console


class Interrupted(io.BufferedWriter):
    """A stream into whose own write a signal has come: Python lets nobody flush it meanwhile."""

    def flush(self):
        if not self.closed:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")


def test_a_report_is_printed_in_the_middle_of_the_programs_own_write(tmp_path, monkeypatch):
    path = tmp_path / "printed"
    stream = io.TextIOWrapper(Interrupted(io.FileIO(path, "w")), write_through=True)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        Console("stdout").print("a report\n")
    assert path.read_text() == "a report\n"
