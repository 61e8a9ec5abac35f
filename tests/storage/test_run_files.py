"""The files of a run on each of its ranks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.recording import FakeClock, FakeRun
from training_profiler.model.ranks import AttemptStats, RankId
from training_profiler.model.snapshot import Health
from training_profiler.safety import files as own_folder
from training_profiler.settings.settings import Settings
from training_profiler.storage import run_files, run_folder
from training_profiler.storage.journal import BufferedLines, line_of
from training_profiler.storage.journal_discovery import LaunchId
from training_profiler.storage.journal_lines import EpochBeginLine, LostLine
from training_profiler.storage.run_files import RunFiles
from training_profiler.storage.run_folder import META, run_ending, run_named, write_json

RUN = "20261121-142530"
LAUNCH = LaunchId("node0", parent_pid=41, parent_start_s=1000.0)
DATA = {"schema": 1}


@pytest.fixture(autouse=True)
def one_second(monkeypatch):
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: RUN)
    monkeypatch.setattr(run_files, "this_launch", lambda launch: LAUNCH)


class Process:
    """The files of one rank, with a run that writes to its journal."""

    def __init__(self, parent, rank, attempt=0):
        self.who = RankId(rank, 4, "node0", 0, rank, attempt)
        self.clock = FakeClock()
        self.run = FakeRun()
        settings = Settings(dir=str(parent), rank=rank)
        self.files = RunFiles(settings, self.run.names, self.run.clock(), self.clock)

    def flush(self, steps=1):
        for _ in range(steps):
            self.run.step(forward_pass=1.0)
        self.run.journal = self.files.open(self.who)
        self.run.flush()
        return self

    def close(self, ended_by=None):
        self.files.close(Health(), ended_by)

    def records(self):
        (path,) = self.files.folder.glob(f"rank{self.who.rank}*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_on_another_machine_the_first_rank_makes_the_folder(tmp_path):
    for rank in (2, 3):
        other = Process(tmp_path, rank)
        other.files.run_name = RUN
        other.flush()
    assert names_in(tmp_path / RUN) == ["meta-rank2.json", "rank2.jsonl", "rank3.jsonl"]
    meta = json.loads((tmp_path / RUN / "meta-rank2.json").read_text())
    assert (meta["run"], meta["who"]["rank"]) == (RUN, 2)
    assert "git" not in meta


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/tmp", "a\\b", "a\0b", "é", "x" * 300, "a\n", 7, b"x"])
def test_a_path_as_run_name_is_ignored(tmp_path, name):
    other = Process(tmp_path / "runs", 3)
    other.files.run_name = name
    other.flush()
    assert other.files.folder is None
    assert list(tmp_path.iterdir()) == []


def test_searches_for_the_folder_become_rarer(tmp_path, monkeypatch):
    searches = []
    monkeypatch.setattr(run_files, "run_of_rank", lambda *arguments: searches.append(other.clock.now_ns // 10**9))
    other = Process(tmp_path, 3)
    for _ in range(300):
        other.flush()
        other.clock.advance(1)
    assert searches == [0, 2, 6, 14, 30, 62, 126, 190, 254]


def change_meta(parent, **values):
    path = parent / RUN / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "meta",
    [
        {"launched": LAUNCH._replace(parent_pid=42)._asdict()},
        {"launched": None},
        {"attempts": [{"number": 1, "begin_wall_ns": 0}]},
        {"attempts": [{"number": 0, "begin_wall_ns": -(10**13)}]},  # hours before
        {"attempts": 7},
        {"attempts": [None, {"number": "x"}, {}]},
    ],
)
def test_a_folder_of_another_launch_attempt_or_time_is_ignored(tmp_path, meta):
    Process(tmp_path, 0).flush()
    change_meta(tmp_path, **meta)
    assert Process(tmp_path, 3).flush().files.folder is None


def test_a_rank_that_comes_again_with_its_attempt_number_is_of_another_run(tmp_path):
    Process(tmp_path, 0).flush()
    assert [Process(tmp_path, 3).flush().files.folder for _ in range(2)] == [tmp_path / RUN, None]
    again = [Process(tmp_path, 0, attempt=1).flush().files.folder for _ in range(2)]
    assert again == [tmp_path / RUN, tmp_path / f"{RUN}-2"]


def test_a_second_run_does_not_reuse_the_first_name(tmp_path):
    for _ in range(2):
        other = Process(tmp_path, 3)
        other.files.run_name = RUN
        other.flush()
    assert other.files.folder is None
    other.files.run_name = "20261121-150000"
    assert other.flush().files.folder == tmp_path / "20261121-150000"


def test_files_of_other_processes_are_never_changed(tmp_path):
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "rank3.jsonl").write_text('{"kind":"begin","pid":1,"host":"node7"}\n')
    other = Process(tmp_path, 3)
    other.files.run_name = RUN
    other.flush()
    assert (tmp_path / RUN / "rank3.jsonl").read_text() == '{"kind":"begin","pid":1,"host":"node7"}\n'
    assert names_in(tmp_path / RUN) == ["rank3-2.jsonl", "rank3.jsonl"]


def test_a_rank_without_a_folder_makes_its_own_at_the_end(tmp_path):
    other = Process(tmp_path, 3).flush()
    other.close("SIGTERM")
    assert names_in(tmp_path) == [f"{RUN}-rank3"]
    assert names_in(tmp_path / f"{RUN}-rank3") == ["meta.json", "rank3.jsonl"]
    records = other.records()
    assert (records[0]["run"], records[-1]["ended_by"]) == (f"{RUN}-rank3", "SIGTERM")
    assert Process(tmp_path, 2).flush().files.folder is None  # it is not for other ranks


def test_a_rank_searches_once_more_at_the_end(tmp_path):
    other = Process(tmp_path, 3).flush()
    Process(tmp_path, 0).flush()
    other.close()
    assert names_in(tmp_path) == [RUN]


def test_a_rank_without_intervals_writes_no_files(tmp_path):
    other = Process(tmp_path, 3)
    for line in (line_of(EpochBeginLine(1)), line_of({"kind": "rank"})):
        other.files.open(other.who).append(line)
    other.close()
    Process(tmp_path, 2).close()
    assert list(tmp_path.iterdir()) == []


def test_only_rank_0_writes_reports(tmp_path):
    first, other = Process(tmp_path, 0).flush(), Process(tmp_path, 1)
    other.files.run_name = RUN
    other.flush()
    other.files.write_report("other", DATA)
    assert not list((tmp_path / RUN).glob("report*"))
    first.files.write_report("first", DATA)
    assert (tmp_path / RUN / "report.txt").read_text() == "first"


def test_a_later_attempt_continues_in_the_folder(tmp_path):
    before = Process(tmp_path, 0).flush(20)
    before.files.write_report("before", DATA)
    before.close("SIGTERM")
    Process(tmp_path, 0, attempt=1).flush().close("ValueError")  # without a report
    last = Process(tmp_path, 0, attempt=2).flush()
    last.files.write_report("last", DATA)
    assert last.files.attempts == (
        AttemptStats(0, 20, 20.0, "SIGTERM", is_ended=True),
        AttemptStats(1, 1, 1.0, "ValueError", is_ended=True),
    )
    journals = ["rank0-attempt1.jsonl", "rank0-attempt2.jsonl", "rank0.jsonl"]
    reports = ["report-attempt0.json", "report-attempt0.txt", "report.json", "report.txt"]
    assert names_in(tmp_path / RUN) == ["meta.json", *journals, *reports]
    assert (tmp_path / RUN / "report-attempt0.txt").read_text() == "before"
    assert (tmp_path / RUN / "report.txt").read_text() == "last"
    meta = json.loads((tmp_path / RUN / "meta.json").read_text())
    assert [row["number"] for row in meta["attempts"]] == [0, 1, 2]
    other = Process(tmp_path, 3, attempt=2).flush()
    assert other.files.folder == tmp_path / RUN
    assert (tmp_path / RUN / "rank3-attempt2.jsonl").exists()


def test_a_full_disk_raises_oserror(tmp_path):
    (tmp_path / "runs").write_text("")
    other = Process(tmp_path / "runs", 3).flush()
    other.files.run_name = RUN
    with pytest.raises(OSError, match="runs"):
        other.flush()


@pytest.fixture
def theirs(tmp_path):
    """A folder of others with files of all names; they stay as they are."""
    path = tmp_path / "theirs"
    path.mkdir()
    names = ("meta.json", "rank0.jsonl", "report.txt", "report.json", "report.html", "meta-rank3.json", "rank3.jsonl")
    for name in names:
        (path / name).write_text("precious")
    yield path
    assert names_in(path) == sorted(names)
    assert {(path / name).read_text() for name in names} == {"precious"}


def put_aside(folder, theirs, by="link"):
    """Put a link to a folder of others, or that folder, in place of a run's folder."""
    aside = folder.parent / "aside"
    folder.rename(aside)
    if by == "link":
        folder.symlink_to(theirs)
    return aside


def swapped_notes(process):
    return [note for note in process.files.notes() if "is another folder now, or gone" in note]


@pytest.mark.parametrize("by", ["link", "nothing"])
def test_a_run_goes_on_in_the_folder_that_it_opened_and_says_so_once(tmp_path, theirs, by):
    first = Process(tmp_path / "runs", 0).flush()
    assert swapped_notes(first) == []
    aside = put_aside(first.files.folder, theirs, by)
    first.files.append(line_of(LostLine(1)), first.who, None)
    first.flush()
    assert len(swapped_notes(first)) == 1
    first.files.add_git()
    first.files.write_report("text", DATA)
    first.close()
    assert names_in(aside) == ["meta.json", "rank0.jsonl", "report.json", "report.txt"]
    assert json.loads((aside / "meta.json").read_text())["who"]["rank"] == 0
    assert json.loads((aside / "rank0.jsonl").read_text().splitlines()[-1])["kind"] == "end"
    assert len(swapped_notes(first)) == 1


def test_discarding_a_run_removes_its_own_files_alone(tmp_path, theirs):
    first = Process(tmp_path / "runs", 0).flush()
    aside = put_aside(first.files.folder, theirs)
    first.files.discard()
    assert names_in(aside) == []


def test_a_folder_that_is_another_one_by_now_is_not_moved(tmp_path, theirs):
    first = Process(tmp_path / "runs", 0).flush()
    put_aside(first.files.folder, theirs)
    first.files.reconfigure(replace(first.files.settings, dir=str(tmp_path / "others"), name="a"))
    assert not (tmp_path / "others").exists()
    assert first.flush().files.folder == tmp_path / "runs" / RUN


def test_a_later_attempt_joins_no_link(tmp_path, theirs):
    first = Process(tmp_path / "runs", 0).flush()
    first.files.write_report("text", DATA)
    first.close()
    put_aside(first.files.folder, theirs)
    again = Process(tmp_path / "runs", 0, attempt=1).flush()
    assert again.files.folder == tmp_path / "runs" / f"{RUN}-2"


def test_the_folder_is_open_until_it_is_let_go(tmp_path):
    first = Process(tmp_path, 0).flush()
    first.files.write_report("text", DATA)
    first.close()
    assert list(own_folder._open) == [tmp_path / RUN]
    first.files.let_go()
    assert list(own_folder._open) == []


@pytest.mark.parametrize(
    ("limits", "lines", "kept", "dropped"),
    [
        ({}, [("interval", b"1\n"), ("rank", b"a\n"), ("epoch_begin", b"2\n"), ("rank", b"b\n")], b"1\n2\nb\n", 0),
        (
            {"most_lines": 2},
            [("epoch_begin", b"0\n"), ("interval", b"1\n"), ("interval", b"2\n"), ("interval", b"3\n")],
            b"2\n3\n",
            1,
        ),
        ({"most_bytes": 5}, [("interval", b"111\n"), ("interval", b"2\n"), ("interval", b"33\n")], b"2\n33\n", 1),
        ({"most_bytes": 5}, [("interval", b"123456\n")], b"", 1),
    ],
    ids=["the last rank summary", "too many lines", "too many bytes", "too long a line"],
)
def test_the_oldest_lines_go_first_and_dropped_intervals_are_counted(limits, lines, kept, dropped):
    held = BufferedLines(**limits)
    for kind, line in lines:
        held.add(kind, line)
    assert (held.drain(), held.dropped, held.drain()) == (kept, dropped, b"")


def make_run(parent: Path, stamp: str, name: str, settings: dict[str, str] | None = None) -> Path:
    folder = parent / f"{stamp}{run_ending(name)}"
    folder.mkdir(parents=True)
    write_json(folder / META, {"settings": {"name": name} if settings is None else settings})
    return folder


def test_the_newest_run_of_exactly_that_name_or_folder_is_found(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"2026112{day}-142530", name) for day, name in enumerate(("a", "a", "b", "a-2"))]
    assert [run_named(name, tmp_path) for name in ("a", "b", "a-2", runs[0].name)] == [*runs[1:], runs[0]]
    assert [run_named(name, tmp_path) for name in ("c", "..", "a/b", "", ".")] == [None] * 5
    assert run_named("a", tmp_path / "missing") is None
