"""Blocks of sections are read the same for comparisons and timelines."""

import msgspec
import pytest

from training_profiler.model.interval import IntervalRecord
from training_profiler.snapshot.snapshot import OTHER


def interval(sections, step_ns, **options):
    data = {
        "begin_ns": 0, "end_ns": 10**10, "first_step": 0, "step_ns": step_ns, "sections": sections, "parents": [],
        "coupling": [0, 0.0, 0.0], "first_fetch_ns": None, "dropped": 0, "unended": 0, **options,
    }  # fmt: skip
    return msgspec.convert(data, IntervalRecord)


def test_blocks_are_in_ns_and_time_in_no_section_is_other():
    sections = {"forward_pass": {"series_us": [3, 4]}, "": {"series_us": [1, 0]}, "idle": {"self_ns": 7}}
    blocks = interval(sections, [5000, 5000, 5000], steps_a_block=2).blocks(lambda name: name or OTHER)
    assert blocks == (2, {"forward_pass": (3000, 4000), OTHER: (1000, 0)})


def test_sections_that_share_a_name_add_up():
    sections = {"a": {"series_us": [3, 4]}, "b": {"series_us": [1, 0]}}
    blocks = interval(sections, [5000, 5000], steps_a_block=1).blocks(lambda name: "(other names)")
    assert blocks.by_section_ns == {"(other names)": (4000, 4000)}


@pytest.mark.parametrize("step_ns", [[5000, 6000], []])
def test_an_interval_without_series_is_one_block(step_ns):
    blocks = interval({"forward_pass": {"step_self_ns": 900}}, step_ns).blocks(lambda name: name or OTHER)
    assert blocks == ((2, {"forward_pass": (900,)}) if step_ns else (1, {}))
