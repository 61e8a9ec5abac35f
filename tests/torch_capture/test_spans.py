import numpy as np

from training_profiler.model.location import Location
from training_profiler.torch_capture import trace_file
from training_profiler.torch_capture.trace_file import CapturedSpans, WrittenSpan


def add(spans: CapturedSpans, *rows: tuple[int, int, int], until_ns: int) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 3)
    spans.add(columns[:, 0], columns[:, 1], columns[:, 2], until_ns)


def test_spans_are_cut_at_the_ends_of_the_window_and_complete_once_all_have_arrived():
    spans = CapturedSpans({1: "a", 2: "b"}, begin_ns=100)
    add(spans, (1, 10, 90), (1, 90, 110), (2, 120, 130), until_ns=150)
    spans.ends(200)
    assert not spans.is_complete.is_set()
    add(spans, (2, 190, 230), (1, 220, 230), until_ns=200)
    assert spans.is_complete.is_set()
    assert spans.written() == [WrittenSpan("a", 100, 110), WrittenSpan("b", 120, 130), WrittenSpan("b", 190, 200)]


def test_more_spans_than_a_trace_should_have_are_counted(monkeypatch):
    monkeypatch.setattr(trace_file, "MOST_SPANS", 2)
    spans = CapturedSpans({1: "a"}, begin_ns=0)
    add(spans, (1, 1, 2), (1, 3, 4), (1, 5, 6), until_ns=9)
    assert (len(spans.written()), spans.left_out) == (2, 1)


def test_sampled_lines_are_those_of_the_window():
    spans = CapturedSpans({}, begin_ns=100)
    at = Location("train.py", 41, "main")
    spans.add_samples([(90, at), (110, at), (150, None)])
    spans.add_samples([(199, at), (200, at)])
    add(spans, until_ns=240)
    spans.ends(200)
    assert spans.written() == [
        WrittenSpan("train.py:41 in main", 110, None),
        WrittenSpan("train.py:41 in main", 199, None),
    ]
