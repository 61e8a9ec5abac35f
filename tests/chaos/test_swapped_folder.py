"""The owner of the folder around a run puts something else in its place: nothing of theirs changes."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.chaos.neighbours import PROGRAMS
from tests.system.scripts import environment, finish, fork_server

pytestmark = pytest.mark.chaos

FILES = (
    "meta.json", "rank0.jsonl", "report.txt", "report.json", "report.html", "metrics.jsonl", "metrics.csv",
    "metrics.prom", "meta.json.part", "report.txt.part", "report.json.part", "report.html.part", "stacks/rank0.json",
    "ranks/0.json", "captures/step40-42-rank0.pt.trace.json.gz", "rank0-2.jsonl",
)  # fmt: skip
PACKAGES = {"prometheus": "prometheus_client", "tensorboard": "tensorboard"}
SINKS = ["jsonl", "csv", *(sink for sink, package in PACKAGES.items() if find_spec(package))]
NOTE = "is another folder now, or gone: the run goes on in the folder that it opened first"


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return what lies in a folder, and when it was written."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def plant(folder: Path) -> dict[str, tuple[bytes, int]]:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"precious")
    return tree(folder)


def swap(folder: Path, how: str, *more: str) -> str:
    """Run the program to its end; return what it says."""
    words = [str(PROGRAMS / "swapped_folder.py"), how, *more]
    ended = finish(fork_server().start(words, folder, environment("1", SINKS=",".join(SINKS))), folder)
    assert ended.status == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nothing")
    swap(folder, "nothing")
    return (folder / "losses").read_text()


@pytest.mark.parametrize(
    ("how", "more"), [("link", ""), ("folder", ""), ("gone", ""), ("link", "chdir"), ("folder", "fork")]
)
def test_files_of_the_run_stay_in_the_folder_that_was_opened(tmp_path: Path, losses: str, how: str, more: str) -> None:
    theirs = plant(tmp_path / "theirs")
    copy = plant(tmp_path / "copy")
    swap(tmp_path, how, *more.split())
    assert tree(tmp_path / "theirs") == theirs
    if how == "folder":
        (in_place,) = (tmp_path / "runs").glob("2*")
        assert tree(in_place) == copy
    written = tree(tmp_path / "aside")
    assert {
        "meta.json",
        "rank0.jsonl",
        "report.txt",
        "report.json",
        *("metrics.jsonl", "metrics.csv"),
    } <= written.keys()
    assert any(name.startswith("captures/step40-42") for name in written)
    assert more or "stacks/rank0.json" in written
    assert not any(name.endswith(".part") or "/raw-" in name for name in written)
    report = json.loads(written["report.json"][0])
    assert report["steps"] >= 63
    notes = [note for note in report["health"]["notes"] if NOTE in note]
    assert len(notes) == 1
    assert report["health"]["disabled"] == []
    assert max(json.loads(line)["step"] for line in written["metrics.jsonl"][0].splitlines()) >= 60
    assert (tmp_path / "losses").read_text() == losses


@pytest.mark.parametrize("how", ["link", "folder", "gone"])
def test_once_the_descriptors_are_closed_too_nothing_is_written(tmp_path: Path, losses: str, how: str) -> None:
    theirs = plant(tmp_path / "theirs")
    copy = plant(tmp_path / "copy")
    said = swap(tmp_path, how, "close")
    assert tree(tmp_path / "theirs") == theirs
    if how == "folder":
        (in_place,) = (tmp_path / "runs").glob("2*")
        assert tree(in_place) == copy
    assert "Profiler: run folder switched off, the training goes on: " in said
    assert NOTE in said
    assert (tmp_path / "losses").read_text() == losses


def test_a_program_that_closes_our_descriptors_keeps_its_run(tmp_path: Path, losses: str) -> None:
    swap(tmp_path, "nothing", "close")
    (folder,) = (tmp_path / "runs").glob("2*")
    report = json.loads((folder / "report.json").read_text())
    assert (report["steps"], report["health"]["disabled"]) == (63, [])
    assert not any(NOTE in note for note in report["health"]["notes"])
    assert (tmp_path / "losses").read_text() == losses
