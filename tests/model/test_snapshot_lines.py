"""The places of the user's code shown for a section."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.recording import snapshot_of
from training_profiler.diagnosis.places import may_be_a_quarter, places_named, with_a_quarter
from training_profiler.model.snapshot import LineStats, Snapshot


def line(number: int, function: str, share: float, file: str = "train.py") -> LineStats:
    return LineStats(file, number, function, share=share, samples=round(share * 1000))


def hottest(*lines: LineStats) -> list[LineStats]:
    return Snapshot(lines={"other": tuple(lines)}).hottest("other")


def test_a_section_without_lines_has_none():
    assert Snapshot().hottest("other") == []


def test_the_three_hottest_lines_are_named():
    lines = [line(1, "main", 0.125), line(2, "main", 0.0625), line(3, "main", 0.03125), line(4, "main", 0.015625)]
    assert hottest(*lines) == lines[:3]


def test_lines_below_a_hundredth_of_the_run_are_not_named():
    assert hottest(line(1, "main", 0.5), line(2, "main", 0.01), line(3, "main", 0.0099)) == [
        line(1, "main", 0.5),
        line(2, "main", 0.01),
    ]


def test_scattered_time_is_shown_by_function():
    lines = [line(10, "get_batch", 0.03125), *(line(i, "get_batch", 0.015625) for i in range(11, 19))]
    assert hottest(*lines) == [LineStats("train.py", 10, "get_batch", share=0.15625, samples=159, lines=9)]


def test_functions_of_one_name_in_two_files_are_separate():
    lines = [*(line(i, "f", 0.015625, "a.py") for i in range(8)), *(line(i, "f", 0.015625, "b.py") for i in range(8))]
    assert [(place.file, place.share, place.lines) for place in hottest(*lines)] == [
        ("a.py", 0.125, 8),
        ("b.py", 0.125, 8),
    ]


def test_a_function_has_the_shares_of_its_lines():
    (place,) = hottest(*(line(i, "<module>", 0.015625) for i in range(40)))
    assert (place.what, len(place.parts), place.parts[0]) == ("<module> (40 lines)", 40, (0, 0.015625))


def in_library(number: int, inside: str, share: float) -> LineStats:
    return replace(line(number, "main", share), inside=inside, phase=inside.partition(" > ")[2])


def test_time_scattered_in_a_library_is_shown_by_the_line_of_its_loop():
    lines = [in_library(30, f"lib/trainer.py:{i % 2} fit > lib/file{i}.py:{i} f{i}", 0.008) for i in range(40)]
    assert [(place.place, place.what) for place in hottest(*lines)] == [("lib/trainer.py:0", "fit (40 places in it)")]


def test_time_in_a_library_without_a_loop_is_shown_by_the_users_line():
    lines = [in_library(30, f"lib/file{i}.py:{i} f{i}", 0.008) for i in range(40)]
    assert [(place.place, place.what) for place in hottest(*lines)] == [("train.py:30", "main")]


def test_a_phase_of_a_trainer_is_shown_by_its_loop():
    lines = [in_library(30, "lib/trainer.py:7 fit > callback on_step_end", 0.25), line(5, "load", 0.02)]
    assert [(place.place, place.what, place.caller) for place in hottest(*lines)] == [
        ("lib/trainer.py:7", "fit > callback on_step_end", "train.py:30 main"),
        ("train.py:5", "load", ""),
    ]


def test_text_of_a_snapshot_is_one_readable_line():
    snapshot = snapshot_of({"forward_pass": 0.5, "data_loading": 0.3, "a": 0.1, "b": 0.05}, steps=100)
    text = repr(snapshot)
    assert text.startswith("<Snapshot: 100 steps in 10")
    assert text.endswith(", forward_pass 50%, data_loading 30%, a 10%>")


def test_page_of_a_snapshot_escapes_names_of_sections():
    page = snapshot_of({"<script>": 0.5})._repr_html_()
    assert "<td>&lt;script&gt;</td><td>50.0%</td>" in page
    assert "<script>" not in page


def test_functions_have_the_time_of_all_their_lines() -> None:
    """The hottest line is of the smaller function; a line that has nearly all of its function's time stands for it."""
    lines = [LineStats("a.py", line, "load", 0.1, 10) for line in (3, 4, 5)]
    lines += [LineStats("a.py", line, "augment", share, 10) for line, share in ((9, 0.25), (10, 0.02))]
    places = places_named(lines, 0.6)
    assert [(place.place, place.what, round(place.share, 2)) for place in places] == [
        ("a.py:3", "load (3 lines)", 0.3),
        ("a.py:9", "augment", 0.25),
    ]


def test_every_function_with_a_quarter_is_named_and_three_in_any_case() -> None:
    def named(*shares: float) -> list[str]:
        lines = [LineStats("a.py", at, f"f{at}", share, 10) for at, share in enumerate(shares)]
        return [place.function for place in places_named(lines, 1.0)]

    assert named(0.25, 0.25, 0.25, 0.25) == ["f0", "f1", "f2", "f3"]
    assert named(0.5, 0.2, 0.1, 0.05, 0.005) == ["f0", "f1", "f2"]
    assert named(0.5, 0.005) == ["f0"]


@pytest.mark.parametrize(("samples", "least"), [(20, 0.164), (100, 0.164), (400, 0.207), (10_000, 0.242)])
def test_a_part_that_may_be_a_quarter_by_its_samples_is_one(samples: int, least: float) -> None:
    assert may_be_a_quarter(least, samples)
    assert not may_be_a_quarter(least - 0.001, samples)


def test_equal_causes_of_a_quarter_are_both_named_in_nearly_all_runs() -> None:
    """Of 400 samples, a cause of 26 % has 22 to 30 %: a limit at a quarter would name it in two of three runs."""
    rng, named = random.Random(0), 0
    for _ in range(500):
        counts = Counter(rng.choices(("f0", "f1", "f2"), (0.48, 0.26, 0.26), k=400))
        lines = [LineStats("a.py", at, name, counts[name] / 400, counts[name]) for at, name in enumerate(counts)]
        named += len(with_a_quarter(lines, lines, 1.0)) == 3
    assert named >= 0.95 * 500
