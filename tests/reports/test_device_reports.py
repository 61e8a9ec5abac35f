"""Device time in reports, and its absence where nothing was measured."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.reports.console import render_final, render_periodic
from training_profiler.reports.layout import Layout
from training_profiler.reports.report_json import as_data
from training_profiler.snapshot.snapshot import DeviceTimingStats

LINES, WIDE = Layout(format="lines"), Layout(width=140)
UNMEASURED = {"the pool of events was empty": 12, "a graph was captured": 3}
DEVICE = DeviceTimingStats("cuda", "NVIDIA H200", "events", 300, UNMEASURED)


def snapshot(device=DEVICE, **sections):
    plain = snapshot_of({"data_loading": 0.1, "forward_pass": 0.5})
    if device is not None:
        measured = {
            "forward_pass": {"device_count": 100, "device_total_s": 6.0},
            "data_loading": {"device_count": 50, "device_total_s": 0.25},
            **sections,
        }
        plain = replace(
            plain, sections={name: replace(s, **measured.get(name, {})) for name, s in plain.sections.items()}
        )
    return replace(plain, device=device)


def lines_of(text, word):
    return [line for line in text.splitlines() if word in line]


def test_table_has_a_column_of_device_time():
    section = section_stats("logging", 0.01)
    one = snapshot()
    text = render_periodic(replace(one, sections={**one.sections, "logging": section}))
    rows = [line.split() for line in text.splitlines()]
    assert rows[4][-2:] == ["device", "avg"]
    ends = {row[0]: row[-1] for row in rows[6:9]}
    assert ends == {"logging": "host", "forward_pass": "60.000", "data_loading": "5.000"}


def test_greppable_line_ends_with_device_time():
    one = snapshot()
    logging = section_stats("logging", 0.01, min_s=0.1, max_s=0.1)
    text = render_periodic(replace(one, sections={**one.sections, "logging": logging}), LINES)
    assert lines_of(text, "avg=") == [
        "logging: count=100, total=10.000s, avg=0.1000s, min=0.1000s, max=0.1000s, device=host",
        "forward_pass: count=100, total=5.000s, avg=0.0500s, device_avg=0.0600s",
        "data_loading: count=100, total=1.000s, avg=0.0100s, device_avg=0.0050s",
    ]


def test_summary_names_the_device_and_unmeasured_spans():
    assert lines_of(render_final(snapshot(), [], WIDE), "Device time") == [
        "Device time: cuda (NVIDIA H200), events; 300 spans measured, "
        "15 not (the pool of events was empty 12, a graph was captured 3)"
    ]


FEW = {"device_count": 5, "device_total_s": 0.025}
OUTSIDE_STEPS = {"count": 200, "total_s": 2.0, "device_count": 50, "device_total_s": 0.25}


@pytest.mark.parametrize(
    ("run", "share"),
    [
        (snapshot(), "5.0% of step time, "),
        (snapshot(data_loading=OUTSIDE_STEPS), "5.0% of step time, "),
        (snapshot(data_loading=FEW), ""),
        (replace(snapshot(), step=None), ""),
    ],
)
def test_summary_has_the_devices_wait_for_input(run, share):
    assert lines_of(render_final(run, []), "waited") == [f"Device waited for input: {share}5.00 ms per batch"]


def test_no_wait_for_input_with_sync_timing():
    text = render_final(snapshot(replace(DEVICE, timing="sync", unmeasured={})), [])
    assert lines_of(text, "Device") == ["Device time: cuda (NVIDIA H200), sync; 300 spans measured"]


def test_no_device_no_line():
    one = snapshot(device=None)
    for layout in (WIDE, LINES):
        assert "evice" not in render_final(one, [], layout)


def test_json_has_device_time():
    data = as_data(snapshot(), [])
    assert data["device"] == {
        "kind": "cuda",
        "name": "NVIDIA H200",
        "timing": "events",
        "spans": 300,
        "unmeasured": UNMEASURED,
    }
    assert data["sections"]["forward_pass"]["device_count"] == 100
    assert data["sections"]["forward_pass"]["device_total_s"] == 6.0
    assert as_data(snapshot(device=None), [])["device"] is None
