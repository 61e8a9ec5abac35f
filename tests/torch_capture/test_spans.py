import numpy as np

from training_profiler.torch_capture import trace_file
from training_profiler.torch_capture.trace_file import Span, SpanBook


def add(book: SpanBook, *rows: tuple[int, int, int], until_ns: int) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 3)
    book.add(columns[:, 0], columns[:, 1], columns[:, 2], until_ns)


def test_what_lies_before_a_window_is_left_out_and_what_reaches_over_its_ends_is_cut():
    book = SpanBook({1: "a", 2: "b"}, begin_ns=100)
    add(book, (1, 10, 90), (1, 90, 110), (2, 120, 130), (2, 190, 230), (1, 220, 230), until_ns=240)
    book.ends(200)
    assert book.spans() == [Span("a", 100, 110), Span("b", 120, 130), Span("b", 190, 200)]


def test_a_book_is_complete_once_all_up_to_the_windows_end_is_summed_up():
    book = SpanBook({}, begin_ns=100)
    add(book, until_ns=150)
    book.ends(200)
    assert not book.is_complete.is_set()
    add(book, until_ns=200)
    assert book.is_complete.is_set()


def test_more_spans_than_a_trace_should_have_are_counted(monkeypatch):
    monkeypatch.setattr(trace_file, "MOST_SPANS", 2)
    book = SpanBook({1: "a"}, begin_ns=0)
    add(book, (1, 1, 2), (1, 3, 4), (1, 5, 6), until_ns=9)
    assert (len(book.spans()), book.left_out) == (2, 1)
