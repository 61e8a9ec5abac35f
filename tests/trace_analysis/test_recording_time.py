"""What the recording itself takes is idle time of no cause in the program: no finding, no saving, no place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_analysis.test_figures import recorded
from training_profiler.cli import main
from training_profiler.trace_analysis.columns import Intervals
from training_profiler.trace_analysis.gaps import cut


def intervals(*pairs):
    begins, ends = zip(*pairs, strict=True) if pairs else ((), ())
    return Intervals.of(np.array(begins, np.int64), np.array(ends, np.int64))


@pytest.mark.parametrize(
    ("recording", "pieces"),
    [
        ([], [(0, 100, 0)]),
        ([(0, 40)], [(0, 40, 0), (40, 100, 0)]),
        ([(40, 60)], [(0, 40, 0), (40, 60, 0), (60, 100, 0)]),
        ([(40, 49)], [(0, 100, 0)]),  # too short
        ([(9, 60)], [(0, 60, 0), (60, 100, 0)]),  # what is before it is
        ([(40, 91)], [(0, 40, 0), (40, 100, 0)]),  # what is after it is
        ([(-50, 500)], [(0, 100, 0)]),
    ],
)
def test_idle_time_is_cut_where_the_recording_begins_and_ends(recording, pieces):
    found, of = cut(intervals((0, 100)), intervals(*recording), 10)
    assert list(zip(found.begin_ns.tolist(), found.end_ns.tolist(), of.tolist(), strict=True)) == pieces


SPANS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=8)


@given(SPANS, st.lists(st.integers(10, 60), min_size=1, max_size=5), st.integers(1, 10))
def test_the_pieces_of_an_idle_time_add_up_to_it(recording, lengths, least):
    begins = np.cumsum([0, *lengths[:-1]]) + np.arange(len(lengths))
    idle = Intervals(begins, begins + np.array(lengths))
    pieces, of = cut(idle, intervals(*((at, at + length) for at, length in recording)), least)
    assert np.bincount(of, pieces.end_ns - pieces.begin_ns).tolist() == lengths
    assert pieces.within(idle.begin_ns, idle.end_ns).tolist() == lengths
    assert (pieces.end_ns - pieces.begin_ns >= least).all()


def test_page_and_comparison_say_how_busy_the_device_is_without_the_recording(tmp_path, capsys):
    trace = recorded().write(tmp_path)
    page = tmp_path / "page.html"
    assert main(["trace", str(trace), "--html", str(page)]) == 0
    busy = "busy for 77.0% of step time, 99.4% without 9.000 ms of the recording itself."
    assert busy in page.read_text("utf-8")
    assert main(["trace", str(trace), "--compare", str(trace)]) == 0
    assert "Before: 99.4% without 9.000 ms of the recording itself\nAfter: 99.4%" in capsys.readouterr().out
