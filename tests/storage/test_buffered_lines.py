import pytest

from training_profiler.storage.journal import BufferedLines


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


def test_only_intervals_count_as_measured():
    held = BufferedLines()
    held.add("epoch_begin", b"0\n")
    held.add("rank", b"0\n")
    assert not held.has_intervals
    held.add("interval", b"0\n")
    assert held.has_intervals
