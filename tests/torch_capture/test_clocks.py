import json

from training_profiler.base.sections import CLOCK_MARK
from training_profiler.torch_capture.trace_file import Marked, Pair, find_marks, meet, on_trace_clock


def event(ns: int, ts: str, dur: str) -> str:
    return f"""
  {{
    "ph": "X", "cat": "user_annotation", "name": "{CLOCK_MARK} {ns}", "pid": 7, "tid": 8,
    "ts": {ts}, "dur": {dur}
    ,
    "args": {{ "External id": 1 }}
  }},"""


def test_a_whole_mark_of_the_host_is_found_with_its_thread_and_times_in_whole_nanoseconds():
    text = event(123, "4439216506288.782", "2.5").encode()
    assert json.loads(text.strip().rstrip(b","))["tid"] == 8
    assert find_marks(text) == {123: Marked(b"7", b"8", 4439216506288782, 4439216506291282)}
    assert find_marks(text[:100]) == find_marks(text.replace(b"user_ann", b"gpu_user_ann")) == {}


def test_moment_is_the_middle_of_the_range_of_all_marks():
    # By the first mark the trace is 900 to 905 ahead, by the second 890 to 902.
    found = {100: Marked(b"", b"", 1005, 1010), 200: Marked(b"", b"", 1102, 1110)}
    assert meet([(100, 110), (200, 220)], found) == Pair(220, 220 + 901)
    assert meet([(100, 110)], {}) is None


def test_between_two_moments_the_clocks_drift_evenly():
    pairs = [Pair(1000, 5000), Pair(2000, 6010)]
    assert [on_trace_clock(pairs, ns) for ns in (1000, 1500, 2000)] == [5000, 5505, 6010]
    assert on_trace_clock([Pair(1000, 5000)], 1234) == 5234
