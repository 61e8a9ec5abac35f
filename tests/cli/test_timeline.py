import json

import pytest

from tests.storage.test_timeline_reader import trained
from tests.support.commands import printed, refused
from tests.support.many_ranks import write_rank


def test_each_format_is_written_into_the_run_folder(tmp_path, capsys):
    trained(tmp_path)
    written = {}
    for format in ("chrome", "speedscope", "collapsed"):
        path = printed(capsys, "timeline", str(tmp_path), "--format", format).strip()
        with open(path, encoding="utf-8") as file:
            written[format] = file.read()
    steps = [
        each for each in json.loads(written["chrome"])["traceEvents"] if each.get("tid") == 1 and each["ph"] == "X"
    ]
    assert [(each["name"], each["dur"] / 1e6) for each in steps] == [(f"step {n}", n + 0.5) for n in range(1, 5)]
    assert all(each["args"] == {"begins_later_by_at_most_ms": 0.0} for each in steps)
    assert json.loads(written["speedscope"])["profiles"][0]["endValue"] == 14_500_000
    assert "forward_pass;train.py:7 loss;lib/a.py:3 f;lib/b.py:4 g 10000000\n" in written["collapsed"]


def test_a_file_or_standard_output_can_be_chosen(tmp_path, capsys):
    trained(tmp_path)
    path = tmp_path / "x.json"
    printed(capsys, "timeline", tmp_path, "--output", path)
    assert printed(capsys, "timeline", tmp_path, "--output", "-") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [None, b"", b'{"kind":"begin","schema":99}\n'])
@pytest.mark.parametrize("name", ["timeline", "html"])
def test_what_is_not_a_run_is_refused_in_one_line(content, name, tmp_path, capsys):
    if content is not None:
        (tmp_path / "rank0.jsonl").write_bytes(content)
    refused(capsys, name, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"rank0.jsonl"}


def test_stacks_of_a_run_without_samples_are_refused(tmp_path, capsys):
    write_rank(tmp_path, 0)
    no_samples = refused(capsys, "timeline", tmp_path, "--format", "collapsed")
    assert "has no samples of lines; is the setting sample_hz 0?" in no_samples
