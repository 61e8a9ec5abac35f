import json

from training_profiler.tables.sections import CLOCK_MARK
from training_profiler.torch_capture.trace_file import ClockMap, Marked, Pair, find_marks, meet


def event(ns: int, ts: str, dur: str, category: str = "user_annotation") -> str:
    return f"""
  {{
    "ph": "X", "cat": "{category}", "name": "{CLOCK_MARK} {ns}", "pid": 7, "tid": 8,
    "ts": {ts}, "dur": {dur}
    ,
    "args": {{ "External id": 1 }}
  }},"""


def test_a_mark_is_found_with_its_thread_and_times_in_whole_nanoseconds():
    text = event(123, "4439216506288.782", "2.5").encode()
    assert json.loads(text.strip().rstrip(b","))["tid"] == 8
    assert find_marks(text) == {123: Marked(b"7", b"8", 4439216506288782, 4439216506291282)}


def test_device_mark_is_ignored():
    assert find_marks(event(123, "1.0", "2.0", "gpu_user_annotation").encode()) == {}


def test_cut_off_mark_is_ignored():
    assert find_marks(event(123, "1.0", "2.0").encode()[:100]) == {}


def test_moment_is_the_middle_of_the_range_of_all_marks():
    # By the first mark the trace is 900 to 905 ahead, by the second 890 to 902.
    found = {100: Marked(b"", b"", 1005, 1010), 200: Marked(b"", b"", 1102, 1110)}
    assert meet([(100, 110), (200, 220)], found) == Pair(220, 220 + 901)


def test_without_marks_in_the_trace_there_is_no_moment():
    assert meet([(100, 110)], {}) is None


def test_between_two_moments_the_clocks_drift_evenly():
    clocks = ClockMap([Pair(1000, 5000), Pair(2000, 6010)])
    assert [clocks.trace_ns(ns) for ns in (1000, 1500, 2000)] == [5000, 5505, 6010]


def test_one_moment_is_enough():
    assert ClockMap([Pair(1000, 5000)]).trace_ns(1234) == 5234
