import json
import os
import socket
import sys
import time
from types import SimpleNamespace

import pytest

from tests.support.commands import printed, refused
from tests.support.recording import FakeRun
from training_profiler.cli import common, main
from training_profiler.storage.run_folder import META, REPORT_DATA


def write_run(runs, name, step_s=0.1, steps=60, meta=None, loading_s=0.02):
    """Write the journal of a run whose forward pass takes most of a step."""
    folder = runs / name
    folder.mkdir(parents=True)
    run = FakeRun(journal=folder / "rank0.jsonl")
    for i in range(steps):
        run.spend("data_loading", loading_s)
        run.spend("forward_pass", (step_s - loading_s) * (1 + 0.02 * ((i * 7) % 5 - 2)))
        run.step()
        if i % 20 == 19:
            run.flush()
    run.flush()
    run.journal.close(run.snapshot().health, None)
    (folder / META).write_text(
        json.dumps({"command": "python train.py", "began": "2026-11-21T14:25:30", **(meta or {})})
    )
    return folder


def without_end(folder, torn=b""):
    journal = folder / "rank0.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]) + torn)


def attempt_of(pid):
    return {"number": 0, "begin_wall_ns": time.time_ns(), "host": socket.gethostname(), "pid": pid}


BROKEN = {
    "has schema 9, this version reads 1": lambda content: content.replace(b'"schema":1', b'"schema":9', 1),
    "does not begin like a journal": lambda content: b"\x00\xff nothing of ours\n" * 10,
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_the_newest_two_are_compared_by_default(runs, capsys):
    write_run(runs, "20261121-142530", 0.5)
    write_run(runs, "20261121-142531")
    write_run(runs, "20261121-142531-2", 0.12)
    out = printed(capsys, "compare")
    assert "before: runs/20261121-142531\nafter:  runs/20261121-142531-2\n" in out
    headline = (
        "SLOWER: a step takes 20.0% longer (96% interval +14.1% to +26.3%); forward_pass:\n20.0 ms more a step, shown"
    )
    step = "100 -> 120 ms: 20% of the training time (1.20 s of the run before) more"
    assert f"\n\n{headline}\n{step}\nCarried by forward_pass: +20.0 ms a step\n" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_pull_request_gets_the_headline_the_table_and_the_machine(runs, capsys, monkeypatch):
    meta = {"platform": "Linux-6.1-x86_64", "cpus": 2, "versions": {"torch": "2.13.0", "numpy": None}}
    write_run(runs, "20261121-142530", meta={"settings": {"name": "a ``` b"}} | meta)
    write_run(runs, "20261121-142531", 0.12)
    lines = printed(capsys, "compare", "--markdown", "--card", str(runs / "a.svg")).splitlines()
    assert lines[0].startswith("**SLOWER: a step takes 20.0% longer")
    assert "forward\\_pass" in lines[0]
    assert (lines.count("````text"), lines.count("````"), lines[-1]) == (1, 1, "Linux-6.1-x86_64, 2 CPUs, torch 2.13.0")
    card = (runs / "a.svg").read_text()
    assert main(["compare", "--card", "a.png"]) == 2
    assert "a PNG needs pip install 'training-profiler[png]'; an SVG needs nothing" in capsys.readouterr().err
    monkeypatch.setattr(common, "find_spec", lambda name: True)
    drawn = SimpleNamespace(svg_to_bytes=lambda svg_string: list(svg_string.encode()))
    monkeypatch.setitem(sys.modules, "resvg_py", drawn)
    printed(capsys, "compare", "--card", str(runs / "a.PNG"))
    assert (runs / "a.PNG").read_text() == card
    assert card.count('height="26"') == 2
    assert all(words in card for words in ("SLOWER: a step takes 20.0%", "120 ms", lines[-1]))


def write_pair(runs, step_s=0.12, program="train.py"):
    """Write a run with steps of 100 ms, and then one of a program whose steps take ``step_s``."""
    write_run(runs, "20261121-142530", 0.1)
    return write_run(runs, "20261121-142531", step_s, meta={"command": f"python {program} --lr 1"})


def test_a_slower_run_fails_only_beyond_the_limit(runs, capsys):
    write_pair(runs)
    assert main(["compare", "--fail-if-slower", "30%"]) == 0
    assert "FASTER" in printed(
        capsys, "compare", "runs/20261121-142531", "runs/20261121-142530", "--fail-if-slower", "3%"
    )


def test_two_programs_are_named_beside_the_verdict(runs, capsys):
    write_pair(runs, program="tools/evaluate.py")
    out = " ".join(printed(capsys, "compare").split())
    assert "SLOWER" in out
    assert "Two programs: train.py before, evaluate.py after. Their steps may be different work" in out
    assert json.loads(printed(capsys, "compare", "--json"))["programs"] == {
        "before": "train.py",
        "after": "evaluate.py",
    }


@pytest.mark.parametrize(("program", "step_s"), [("src/train.py", 0.12), ("evaluate.py", 0.12), ("evaluate.py", 0.08)])
def test_a_check_of_the_newest_runs_refuses_two_programs_and_one_of_given_runs_counts(runs, capsys, program, step_s):
    write_pair(runs, step_s, program)
    given = ["runs/20261121-142530", "runs/20261121-142531"]
    for words in ([], given[:1]):
        if program == "evaluate.py":
            assert "are runs of two programs (train.py and evaluate.py)" in refused(
                capsys, "compare", *words, "--fail-if-slower", "3%"
            )
        else:  # one program in two checkouts
            assert main(["compare", *words, "--fail-if-slower", "3%"]) == 1
    assert main(["compare", *given, "--fail-if-slower", "3%"]) == (step_s > 0.1)


def test_a_check_of_a_run_that_goes_on_is_refused(runs, capsys):
    write_run(runs, "20261121-142530")
    without_end(write_run(runs, "20261121-142531", 0.12, meta={"attempts": [attempt_of(os.getpid())]}))
    assert main(["compare"]) == 0
    capsys.readouterr()
    assert "runs/20261121-142531 is not yet over" in refused(capsys, "compare", "--fail-if-slower", "3%")


def test_too_few_runs_and_a_run_with_itself_are_refused(runs, capsys):
    for command in ("compare", "list"):
        assert "No runs in ./runs. Make one" in refused(capsys, command)
    runs.mkdir()
    assert f"No runs in {runs}. Make" in refused(capsys, "list", str(runs))
    (runs / "rank0.jsonl").touch()
    assert "is a run folder itself" in refused(capsys, "list", str(runs))
    (runs / "rank0.jsonl").unlink()
    write_run(runs, "20261121-142530-baseline", meta={"settings": {"name": "baseline"}})
    assert "runs holds 1 run" in refused(capsys, "compare")
    assert "is the newest run itself" in refused(capsys, "compare", "runs/20261121-142530-baseline")
    assert "baseline is the run to compare with, runs/20261121-142530-baseline" in refused(
        capsys, "compare", "runs/20261121-142530-baseline", "baseline", "--fail-if-slower", "3%"
    )


def test_the_list_says_why_a_run_cannot_be_read(runs, capsys):
    breaks = [*BROKEN.values(), lambda content: b"", lambda content: content.partition(b"\n")[0][:-9]]
    for i, broken in enumerate(breaks):
        path = write_run(runs, f"20261121-14253{i}") / "rank0.jsonl"
        path.write_bytes(broken(path.read_bytes()))
    rows = json.loads(printed(capsys, "list", "--json", "--sort", "began"))
    found = {row["folder"][-1]: (row["state"], row["problem"]) for row in rows}
    for number, words in enumerate(BROKEN):
        assert found[str(number)][0] == "unknown"
        assert found[str(number)][1].startswith(f"rank0.jsonl {words}")
    assert found["2"][1] is found["3"][1] is None


def test_an_unclear_result_does_not_fail_and_is_said(runs, capsys):
    write_run(runs, "20261121-142530", 0.01)
    write_run(runs, "20261121-142531", 0.0106, loading_s=0.002)
    assert main(["compare", "--fail-if-slower", "3%"]) == 0
    out, err = capsys.readouterr()
    assert "\n\nNO DIFFERENCE SHOWN between the steps (+6.2%, 96% interval -1.2% to +14.2%);\nforward_pass: " in out
    assert "are too short to show" in " ".join(out.split())
    assert err.count("\n") == 1
    assert "runs/20261121-142531 may still be 3% slower: its step takes -" in err
    assert main(["compare", "--fail-if-slower", "30%"]) == 0
    assert capsys.readouterr().err == ""


def test_names_and_what_differs_and_json(runs, capsys):
    settings = {"name": "baseline", "log_every": 50}
    write_run(runs, "20261121-142530-baseline", meta={"settings": settings, "git": {"commit": "abc"}})
    write_run(runs, "20261121-142531", meta={"settings": {"log_every": 10}, "git": {"commit": "def"}})
    data = json.loads(printed(capsys, "compare", "baseline", "--json"))
    assert data["before"] == "runs/20261121-142530-baseline (baseline)"
    assert data["verdict"] == "no difference shown"
    assert {each["what"]: (each["before"], each["after"]) for each in data["differences"]} == {
        "git.commit": ("abc", "def"),
        "settings.log_every": ("50", "10"),
    }
    assert data["steps"]["before"]["compared"] == 54
    assert (data["saving_s"], data["saving_share"]) == (None, None)


@pytest.mark.parametrize(("step_s", "saved"), [(0.12, -0.2), (0.08, 0.2)])
def test_the_saving_of_the_training_time_is_the_one_on_the_screen(runs, capsys, step_s, saved):
    write_pair(runs, step_s)
    data = json.loads(printed(capsys, "compare", "--json"))
    assert data["saving_share"] == pytest.approx(saved, rel=0.01)
    assert data["saving_s"] == pytest.approx(60 * 0.1 * saved, rel=0.01)
    words = f"{abs(data['saving_share']):.0%} of the training time ({abs(data['saving_s']):.2f} s of the run before)"
    assert f"{words} {'saved' if saved > 0 else 'more'}" in printed(capsys, "compare")


def test_each_further_run_is_compared_with_the_first(runs, capsys):
    folders = [write_run(runs, f"20261121-14253{i}", step_s) for i, step_s in enumerate((0.1, 0.1, 0.2))]
    assert main(["compare", *map(str, folders), "--fail-if-slower=3"]) == 1
    out = capsys.readouterr().out
    assert out.count("=== Comparison ===") == 2
    assert "NO DIFFERENCE SHOWN" in out
    assert "SLOWER" in out


def test_what_cannot_be_compared_is_one_line_and_status_2(runs, capsys):
    good = write_run(runs, "20261121-142530")
    (runs / "20261121-142531").mkdir()
    bad = {"20261121-142531": "is not a run folder", "nothing": "is neither a folder nor the name of a run"}
    for i, (words, broken) in enumerate(BROKEN.items()):
        path = write_run(runs, f"20261121-14253{2 + i}") / "rank0.jsonl"
        path.write_bytes(broken(path.read_bytes()))
        bad[path.parent.name] = words
    bad[write_run(runs, "20261121-142534", steps=1).name] = "the second run has 1 step so far"
    for name, words in bad.items():
        assert words in refused(capsys, "compare", str(good), str(runs / name))


def test_a_page_is_written_beside_the_text_and_alone_beside_json(runs, capsys):
    write_pair(runs)
    out = printed(capsys, "compare", "--html", "comparison.html")
    assert out.startswith("=== Comparison ===")
    assert out.endswith("\nPage: comparison.html\n")
    page = (runs.parent / "comparison.html").read_text(encoding="utf-8")
    assert "SLOWER: a step takes 20.0% longer" in page
    assert json.loads(printed(capsys, "compare", "--html", "again.html", "--json"))["verdict"] == "slower"
    assert (runs.parent / "again.html").read_text(encoding="utf-8") == page
    assert "nowhere" in refused(capsys, "compare", "--html", "nowhere/comparison.html")


def test_a_run_without_an_end_is_compared_as_far_as_it_is_written(runs, capsys):
    write_run(runs, "20261121-142530")
    without_end(write_run(runs, "20261121-142531"), torn=b'{"kind":"inter')
    out = " ".join(printed(capsys, "compare").split())
    assert "after: the run did not come to its end" in out
    assert "after: 1 torn line" in out


def test_a_list_has_one_line_for_each_run(runs, capsys):
    ended = write_run(runs, "20261121-142530", meta={"settings": {"name": "baseline"}})
    (ended / REPORT_DATA).write_text(
        json.dumps({"steps": 60, "step_time": {"avg_s": 0.1}, "verdict": "INPUT-BOUND: waits", "ended_by": None})
    )
    without_end(write_run(runs, "20261121-142531", meta={"command": "python -m evil\x1b[31m"}))
    (runs / "20261121-142532").mkdir()
    (runs / "notes.txt").write_text("")
    out = printed(capsys, "list")
    assert len(out.splitlines()) == 3
    assert "\x1b" not in out
    assert all(len(line) <= 80 for line in out.splitlines())
    words = ["11-21", "14:25", "baseline", "train.py", "ended", "60", "100", "INPUT-BOUND"]
    assert out.splitlines()[2].split() == words
    rows = json.loads(printed(capsys, "list", "--json", "--sort", "steps", "--reverse"))
    assert [(row["state"], row["steps"]) for row in rows] == [("ended", 60), ("unknown", 60)]


def test_the_states_of_runs_without_a_summary(runs, capsys):
    for name, pid in (("20261121-142530", os.getpid()), ("20261121-142531", 2**22 - 3)):
        without_end(write_run(runs, name, meta={"attempts": [attempt_of(pid)]}))
    assert [row["state"] for row in json.loads(printed(capsys, "list", "--json"))] == ["killed", "running"]


def test_a_name_is_enough_to_request_a_capture(runs, capsys):
    write_run(runs, "20261121-142530-baseline", meta={"settings": {"name": "baseline"}})
    for words in (["capture", "baseline"], ["capture"]):
        assert "the training of runs/20261121-142530-baseline is no longer running" in refused(capsys, *words)
    assert "runs/20261121-142530-baseline is the folder of a run that captured no steps" in refused(
        capsys, "trace", "baseline"
    )
