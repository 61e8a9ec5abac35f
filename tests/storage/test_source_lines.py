"""Lines of source code are read only from the files that ran."""

import os

from training_profiler.storage.source_lines import read_lines

NOW = 2_000_000_000 * 10**9


def written(folder, name="train.py", lines=9, at_s=1_000_000_000):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"line {number}\n" for number in range(1, lines + 1)))
    os.utime(path, (at_s, at_s))
    return path


def meta(folder, command="python train.py"):
    return {"folder": str(folder), "command": command}


def test_a_line_comes_with_two_on_each_side(tmp_path):
    written(tmp_path)
    found = read_lines(meta(tmp_path), [("train.py", 5), ("train.py", 1)], NOW)
    assert found["train.py", 5] == (3, ("line 3", "line 4", "line 5", "line 6", "line 7"))
    assert found["train.py", 1] == (1, ("line 1", "line 2", "line 3"))


def test_a_file_beside_the_program_is_found(tmp_path):
    written(tmp_path, "project/data.py")
    assert read_lines(meta(tmp_path, "python project/train.py"), [("data.py", 1)], NOW)


def test_a_file_that_changed_since_is_not_shown(tmp_path):
    written(tmp_path, at_s=2_000_000_100)
    assert read_lines(meta(tmp_path), [("train.py", 5)], NOW) == {}


def test_other_files_are_not_read(tmp_path):
    written(tmp_path, "secret.txt")
    written(tmp_path, "up.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "sub").mkdir()
    places = [("secret.txt", 1), ("../up.py", 1), ("pipe.py", 1), ("missing.py", 1), ("up.py", 99), ("a\0.py", 1)]
    assert read_lines(meta(tmp_path / "sub"), places, NOW) == {}
    assert read_lines(meta(tmp_path), [("pipe.py", 1), ("up.py", 99)], NOW) == {}


def test_meta_may_have_any_content(tmp_path):
    for content in ({}, {"folder": 3}, {"folder": str(tmp_path), "command": "python 'x"}):
        assert read_lines(content, [("train.py", 1)], NOW) == {}
