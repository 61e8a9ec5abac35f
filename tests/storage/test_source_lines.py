"""Lines of source code are read only from the files that ran, of the reader's own runs."""

import json
import os

import numpy as np
import pytest

from tests.support.recording import FakeRun
from training_profiler.base.sections import SectionNames
from training_profiler.model.location import Location
from training_profiler.model.program import LOADER, CallFacts, CallSite, ProgramFacts, SliceFacts
from training_profiler.model.ranks import RankId
from training_profiler.model.snapshot import Health
from training_profiler.settings.settings import Settings
from training_profiler.storage import source_lines
from training_profiler.storage.journal import JournalLines, line_of
from training_profiler.storage.run_files import RunFiles
from training_profiler.storage.source_lines import (
    CHANGED,
    NO_DIGESTS,
    NOT_RECORDED,
    OF_OTHERS,
    DigestBook,
    SourceFile,
    digest_of,
    read_lines,
)
from training_profiler.storage.timeline_reader import read_series

NOW = 2_000_000_000 * 10**9


def written(folder, name="train.py", lines=9, at_s=1_000_000_000):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"line {number}\n" for number in range(1, lines + 1)))
    os.utime(path, (at_s, at_s))
    return path


def meta(folder, command="python train.py"):
    return {"folder": str(folder), "command": command}


def recorded(folder, *files, command=("train.py",)):
    return DigestBook(str(folder), command, NOW).new(map(SourceFile, files))


def read(folder, places, digests, command="python train.py"):
    return read_lines(folder, meta(folder, command), places, digests)


def test_a_word_after_m_is_a_folder_only_if_it_names_a_module(tmp_path):
    written(tmp_path, "trainer.py")
    digests = {"trainer.py": digest_of((tmp_path / "trainer.py").read_bytes())}
    for word in ("..", "/", f".{tmp_path}", ""):
        found = read_lines(tmp_path, meta(tmp_path / "empty", f"python -m '{word}'"), [("trainer.py", 5)], digests)
        assert found.missing == {"trainer.py": CHANGED}


def test_a_line_comes_with_two_on_each_side_unless_its_file_has_changed_since(tmp_path):
    written(tmp_path)
    digests = recorded(tmp_path, "train.py")
    found = read(tmp_path, [("train.py", 5), ("train.py", 1)], digests)
    assert found.lines["train.py", 5] == (3, ("line 3", "line 4", "line 5", "line 6", "line 7"))
    assert found.lines["train.py", 1] == (1, ("line 1", "line 2", "line 3"))
    assert found.missing == {}
    written(tmp_path, lines=10)
    assert read(tmp_path, [("train.py", 5)], digests) == ({}, {"train.py": CHANGED})


def test_a_file_beside_the_program_is_found(tmp_path):
    written(tmp_path, "project/data.py")
    digests = recorded(tmp_path, "data.py", command=("project/train.py",))
    assert read(tmp_path, [("data.py", 1)], digests, "python project/train.py").lines


def test_a_file_has_one_digest_and_none_if_it_changed_during_the_run(tmp_path):
    train = written(tmp_path)
    written(tmp_path, "edited.py", at_s=2_000_000_100)
    book = DigestBook(str(tmp_path), (), NOW)
    files = [SourceFile(name) for name in ("train.py", "edited.py", "missing.py")]
    assert book.new(files) == {"train.py": digest_of(train.read_bytes())}
    written(tmp_path, lines=3)
    assert book.new(files) == {}


def test_files_that_a_foreign_run_names_are_not_shown(tmp_path):
    """Its meta.json and its journal may have any content; only who has a file knows its digest."""
    written(tmp_path, "private.py")
    foreign = {"private.py": digest_of(b"a guess"), "train.py": ""}
    found = read(tmp_path, [("private.py", 1), ("other.py", 1)], foreign)
    assert found == ({}, {"private.py": CHANGED, "other.py": NOT_RECORDED})
    assert read(tmp_path, [("private.py", 1)], {}) == ({}, {"private.py": NO_DIGESTS})


@pytest.mark.parametrize("planted", ["", "meta.json", "rank0-attempt7.jsonl"])
def test_nothing_is_shown_for_a_run_of_another_user(tmp_path, monkeypatch, planted):
    written(tmp_path)
    digests = recorded(tmp_path, "train.py")
    (tmp_path / "rank0.jsonl").touch()
    foreign = tmp_path / planted
    foreign.touch()
    as_it_is = os.lstat

    def lstat(path):
        status = list(as_it_is(path))
        status[4] = os.geteuid() + 1 if path == foreign else os.geteuid()
        return os.stat_result(status)

    monkeypatch.setattr(source_lines.os, "lstat", lstat)
    assert read(tmp_path, [("train.py", 5)], digests) == ({}, {"train.py": OF_OTHERS})


def test_other_files_are_not_read(tmp_path):
    secret = written(tmp_path, "secret.txt")
    up = written(tmp_path, "up.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "sub").mkdir()
    names = ["secret.txt", "../up.py", "pipe.py", "missing.py", "a\0.py", "\ud800.py"]
    assert recorded(tmp_path / "sub", *names) == {}
    digests = dict.fromkeys(names, digest_of(up.read_bytes())) | {"secret.txt": digest_of(secret.read_bytes())}
    for folder in (tmp_path / "sub", tmp_path):
        found = read(folder, [(name, 1) for name in names] + [("up.py", 99)], digests | recorded(tmp_path, "up.py"))
        assert found.lines == {}


def test_meta_may_have_any_content(tmp_path):
    written(tmp_path)
    digests = recorded(tmp_path, "train.py")
    for content in ({}, {"folder": 3}, {"folder": "\0"}, {"folder": "/", "command": "python 'x"}):
        assert read_lines(tmp_path, content, [("train.py", 1)], digests).lines == {}


def test_the_journal_has_the_digests_of_the_files_that_it_names(tmp_path):
    run = FakeRun()
    inside = "callback on_step_end > numpy/__init__.py:9 f > missing/x.py:4 g"
    run.sample_line(Location("train.py", 7, "loss", held_by="load.py:3 get", inside=inside))
    run.sample_line(Location("<stdin>", 1, "main"))
    run.clock.advance(1)
    run.step()
    slices = SliceFacts(24, 192, 1.0, 8, "loop.py:9 train")
    loader = CallFacts(LOADER, "DataLoader", CallSite("data.py", 3, "/src/pkg/data.py"))
    line = JournalLines(run.names).interval(
        run.totals(), [], Health(), [], program=ProgramFacts(calls=(loader,), repeats=None, slices=slices)
    )
    plain = {SourceFile(name) for name in ("train.py", "load.py", "loop.py")}
    library = SourceFile("numpy/__init__.py", np.__file__)
    assert line.files == {*plain, library, SourceFile("data.py", "/src/pkg/data.py")}
    digests = DigestBook(str(tmp_path), (), NOW).new([library])
    assert read(tmp_path, [("numpy/__init__.py", 5)], digests).lines


def test_run_files_write_the_digests_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = written(tmp_path)
    files = RunFiles(Settings(dir=str(tmp_path / "runs")), SectionNames(), 0)
    for _ in range(2):
        files.append(line_of({"kind": "interval"})._replace(files=frozenset({SourceFile("train.py")})), RankId(0), None)
    lines = (files.folder / "rank0.jsonl").read_text().splitlines()
    sources = [data["files"] for data in map(json.loads, lines) if data["kind"] == "sources"]
    assert sources == [{"train.py": digest_of(train.read_bytes())}]
    (series,) = read_series(files.folder)
    assert series.sources == sources[0]
