"""Trainings in the process of the tests, as under ``training-profiler run`` and without it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from training_profiler import api

SWITCH = "RECTIFIED_FLOW_PROFILE"


class Runs:
    """The runs of a test, which trains in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports of the runs that have ended, the first one first."""
        files = self.folder.glob("*/report.json")
        return [json.loads(file.read_text()) for file in sorted(files, key=lambda file: file.stat().st_mtime_ns)]

    def report(self) -> dict[str, Any]:
        """Return the report of the only run, after checking that its time adds up and nothing failed."""
        (report,) = self.reports()
        assert sum(section["share"] for section in report["sections"].values()) == pytest.approx(1.0)
        assert (report["health"]["dropped"], report["health"]["disabled"]) == (0, [])
        return report

    def text(self) -> str:
        """Return the text of the only report."""
        (file,) = self.folder.glob("*/report.txt")
        return file.read_text()

    def profile_as_run(self) -> None:
        """Instrument this process as ``training-profiler run`` does."""
        process = api._process
        process.was_stopped, process.session, process.instrumentation = False, None, None
        api.start_instrumentation(process.recorder.clock())

    def end(self) -> None:
        """End the run as the end of the process does."""
        api.stop_training_profiling()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    api._process.instrumentation = None  # of an earlier test
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Runs(tmp_path)
    api.stop_training_profiling()
    torch.set_num_threads(threads)


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(SWITCH, "0")
    yield
    monkeypatch.delenv(SWITCH)
