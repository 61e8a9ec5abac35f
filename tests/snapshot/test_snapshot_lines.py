"""The places of the user's code shown for a section."""

from training_profiler.snapshot.snapshot import LineStats, Snapshot


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
