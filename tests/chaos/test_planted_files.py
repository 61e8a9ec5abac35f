"""Whatever stands in place of a file of a run: a command refuses it in one line, and a training goes on."""

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.cli.test_trace import training
from tests.support.fuzz import JOURNALS, META, command
from training_profiler.model.ranks import RankId
from training_profiler.ranks.stores import FOLDER, FolderStore
from training_profiler.safety.files import is_folder, make_inner_folder
from training_profiler.storage import stack_files
from training_profiler.storage.journal_discovery import LaunchId
from training_profiler.storage.run_files import run_of_rank, runs_of
from training_profiler.storage.run_folder import make_folder, make_run_folder, read_meta
from training_profiler.storage.run_reader import read_run
from training_profiler.torch_capture.request import REQUEST, RequestBox, write_request
from training_profiler.trials import results

pytestmark = pytest.mark.chaos
PATIENCE_S = 60  # a command that waits would wait for ever
LARGE = 300_000_000


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    path.with_name("elsewhere").write_text("precious")
    path.symlink_to(path.with_name("elsewhere"))


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


def in_a_circle(path: Path) -> None:
    path.symlink_to(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@cache
def file_of_brackets() -> str:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    with open(f"{folder}/brackets", "wb") as file:
        file.write(b"[" * LARGE)
    return file.name


def brackets(path: Path) -> None:
    os.link(file_of_brackets(), path)  # a copy for each test would be 9 GB
    assert path.stat().st_size >= LARGE


def holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


pipe, folder = os.mkfifo, os.mkdir
PLANTS = [pipe, folder, zeros, link, dangling, in_a_circle, unix_socket, brackets, holes]
planted = pytest.mark.parametrize("plant", PLANTS)
Plant = Callable[[Path], None]


@pytest.fixture(autouse=True)
def short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket has at most 107 characters


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder that others can write to."""
    path = tmp_path / "20260101-000000"
    path.mkdir()
    path.chmod(0o777)
    (path / "rank0.jsonl").write_bytes((JOURNALS / "rank0.jsonl").read_bytes())
    (path / "meta.json").write_text(json.dumps(META))
    return path


def put(plant: Plant, path: Path) -> None:
    path.unlink(missing_ok=True)
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        plant(Path(path.name))
    finally:
        os.chdir(here)


ALWAYS = (("report",), ("report", "--json"), ("capture",), ("html",))
READ_BY = {
    "rank0.jsonl": [*ALWAYS, ("timeline",), ("watch", "--once"), ("compare",), ("list",)],
    "rank1.jsonl": [("report",), ("report", "--json"), ("capture",)],
    "meta.json": [*ALWAYS, ("compare",), ("list",), ("watch", "--once")],
    "report.json": [("list",)],
    "trials.jsonl": [("report",), ("report", "--json"), ("html",), ("try", "--show-diff")],
    "trials-state.json": [("try", "--resume")],
    "captures/a.pt.trace.json": [("html",), ("trace",)],
    "captures/a.pt.trace.json.gz": [("html",), ("trace",)],
}


@planted
@pytest.mark.parametrize("name", READ_BY)
def test_no_file_of_a_run_holds_a_command(run: Path, plant: Plant, name: str) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    put(plant, run / name)
    begin_s = time.process_time()
    for words in READ_BY[name]:
        more = list(words[1:])
        if words[0] == "compare":
            more.append(str(JOURNALS))
        given = run.parent if words[0] == "list" else run
        command(words[0], *more[: words[0] == "try"], str(given), *more[words[0] == "try" :])
    assert time.process_time() - begin_s < PATIENCE_S


# Files that commands write to the run folder by default.
WRITTEN = {"report.html": ("html",), "timeline.json": ("timeline",), "lines.collapsed.txt": ("timeline",)}


@planted
@pytest.mark.parametrize("ending", ["", ".part"])
@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_command_writes_leads_nowhere_else(run: Path, plant: Plant, name: str, ending: str) -> None:
    put(plant, run / f"{name}{ending}")
    form = ["--format", "collapsed"] if "collapsed" in name else []
    if plant is folder:  # a folder in place of a file is left alone
        with suppress(OSError):
            command(*WRITTEN[name], str(run), *form)
        return
    command(*WRITTEN[name], str(run), *form)
    assert (run / name).is_file()
    assert not (run / name).is_symlink()
    assert 0 < (run / name).stat().st_size < LARGE
    assert plant is not link or (run / "elsewhere").read_text() == "precious"


@planted
def test_results_of_trials_are_added_to_a_file_alone(run: Path, plant: Plant) -> None:
    put(plant, run / results.FILE)
    found = results.Results("train.py", 1.0, ())
    if plant in (brackets, holes):
        results.save(run, found)
        return
    with pytest.raises(OSError, match=r"."):
        results.save(run, found)
    assert plant is not link or (run / "elsewhere").read_text() == "precious"


def other_messages(run: Path) -> bool:
    """Return whether those of other ranks arrive."""
    store = FolderStore(run, 0)
    found = []
    for data in (b"one", b"two"):
        store.send(1, data)
        found.append(store.read(4))
    return found == [{1: b"one"}, {1: b"two"}]


READS: dict[str, Callable[[Path], bool]] = {
    f"{stack_files.FOLDER}/rank0.json": lambda run: stack_files.read_stacks(run) == {},
    f"{stack_files.FOLDER}/{stack_files.REQUEST}": lambda run: stack_files.read_request(run) is None,
    REQUEST: lambda run: RequestBox(0).read_new(str(run)) is None,
    f"{FOLDER}/2.json": other_messages,
}


@planted
@pytest.mark.parametrize("name", READS)
def test_stacks_requests_and_messages_come_from_files_alone(run: Path, plant: Plant, name: str) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    put(plant, run / name)
    assert READS[name](run)


@pytest.mark.parametrize("name", ["captures", "stacks", "ranks", "tensorboard"])
def test_a_linked_inner_folder_is_not_used(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "other").mkdir()
    (run / name).symlink_to(tmp_path / "other")
    with pytest.raises(NotADirectoryError):
        make_inner_folder(run / name)
    assert os.listdir(tmp_path / "other") == []


def test_the_page_shows_no_trace_through_a_planted_link(run: Path, tmp_path: Path) -> None:
    (run / "captures").mkdir(mode=0o777)
    (run / "captures").chmod(0o777)
    training().write(tmp_path, "private.pt.trace.json")
    (run / "captures" / "a.pt.trace.json").symlink_to(tmp_path / "private.pt.trace.json")
    command("html", str(run))
    assert "Recommendations" not in (run / "report.html").read_text()


@planted
def test_a_planted_trace_is_refused(tmp_path: Path, plant: Plant) -> None:
    put(plant, tmp_path / "a.pt.trace.json")
    command("trace", str(tmp_path / "a.pt.trace.json"))
    command("trace", str(tmp_path), "--json")
    command("trace", "--memory-snapshot", str(tmp_path / "a.pt.trace.json"))


def test_a_request_replaces_a_planted_link(run: Path) -> None:
    link(run / REQUEST)
    write_request(run, 3, (0,))
    assert (run / "elsewhere").read_text() == "precious"
    request = RequestBox(0).read_new(str(run))
    assert request is not None
    assert request.steps == 3


@planted
def test_a_message_is_written_where_something_was_planted(run: Path, plant: Plant) -> None:
    store = FolderStore(run, 0)
    (run / FOLDER).mkdir()
    put(plant, run / FOLDER / "1.part")
    if plant is folder:
        with pytest.raises(OSError, match=r"directory|permitted"):
            store.send(1, b"one")
        return
    store.send(1, b"one")
    assert store.read() == {1: b"one"}
    assert plant is not link or (run / FOLDER / "elsewhere").read_text() == "precious"


def test_a_linked_folder_of_messages_is_not_used(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (run / FOLDER).symlink_to(tmp_path / "other")
    with pytest.raises(NotADirectoryError):
        FolderStore(run, 0).send(1, b"one")
    assert FolderStore(run, 0).read() == {}
    assert os.listdir(tmp_path / "other") == []


def test_a_linked_run_folder_is_never_joined(run: Path, tmp_path: Path) -> None:
    launch = LaunchId(host="node0", parent_pid=41, parent_start_s=1000.0)
    meta = META | {"launched": launch._asdict()}
    (run / "meta.json").write_text(json.dumps(meta))
    assert [path for path, *_ in runs_of(launch, tmp_path)] == [run]
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "20260101-000001").symlink_to(run)
    assert list(runs_of(launch, runs)) == []
    assert run_of_rank(RankId(1, 2), 10**15, launch, runs) is None


def test_a_new_run_folder_is_made_beside_what_was_planted(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    runs = tmp_path / "runs"
    runs.mkdir()
    now_s = int(time.time())
    for second in range(now_s, now_s + 30):
        (runs / time.strftime("%Y%m%d-%H%M%S", time.localtime(second))).symlink_to(tmp_path / "other")
    made = make_run_folder(runs)
    assert made.name.endswith("-2")
    assert is_folder(made)
    assert os.listdir(tmp_path / "other") == []
    with pytest.raises(FileExistsError):
        make_folder(runs / made.name.removesuffix("-2"))


def test_a_linked_journal_counts_only_in_a_folder_of_the_user(run: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir(mode=0o755)
    (linked / "rank0.jsonl").symlink_to(run / "rank0.jsonl")
    assert read_run(linked).steps == read_run(run).steps
    linked.chmod(0o777)
    command("report", str(linked))  # refused
    assert read_meta(linked) == {}


def test_an_endless_name_is_refused_in_one_line() -> None:
    command("report", "x" * 5_000)
    command("trace", "x" * 5_000)
    command("capture", "x" * 5_000)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_report_fits_any_encoding(run: Path, encoding: str) -> None:
    journal = (run / "rank0.jsonl").read_text().replace("forward_pass", "前向")
    (run / "rank0.jsonl").write_text(journal)
    for more in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "training_profiler", "report", str(run), *more],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            timeout=10 * PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
