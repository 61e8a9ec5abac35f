"""Contents of device memory, from handmade snapshots and from a snapshot that torch makes of a CPU profile."""

import json
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.support.golden import assert_golden
from training_profiler.base.errors import TraceError
from training_profiler.trace_analysis.memory_snapshot import devices_of, read_snapshot
from training_profiler.trace_analysis.report_views import render_snapshot

MODULE = "/env/lib/python3.11/site-packages/torch/nn/modules/module.py"
ADAM = "/env/lib/python3.11/site-packages/torch/optim/adamw.py"


def frame(filename, line, name):
    return {"filename": filename, "line": line, "name": name}


FORWARD = [
    frame("torch_python_bindings.cpp", 0, "THPVariable_mm"),
    frame("/env/lib/python3.11/site-packages/torch/nn/functional.py", 9, "linear"),
    frame("/home/me/job/model/net.py", 31, "forward"),
    frame(MODULE, 1800, "_call_impl"),
    frame("/home/me/job/train.py", 12, "<module>"),
]
OPTIMIZER = [frame(ADAM, 90, "_init_group"), frame("/home/me/job/train.py", 14, "<module>")]


def block(size, state="active_allocated", asked=None, frames=(), address=None):
    fields = {"size": size, "state": state, "requested_size": size if asked is None else asked, "frames": list(frames)}
    return fields | ({} if address is None else {"address": address})


def segment(*blocks, device=0, address=1 << 40, more=0):
    size = sum(block["size"] for block in blocks) + more
    return {"device": device, "address": address, "total_size": size, "blocks": list(blocks), "segment_type": "large"}


def entry(action, addr, size, time_us=0, frames=()):
    return {"action": action, "addr": addr, "size": size, "time_us": time_us, "frames": list(frames), "stream": 0}


def write(folder, *segments, traces=(), **more):
    path = folder / "dump.pickle"
    path.write_bytes(pickle.dumps({"segments": list(segments), "device_traces": list(traces), **more}))
    return path


BACKWARD = [frame("torch/_tensor.py", 1, "backward"), frame("/home/me/job/train.py", 13, "<module>")]
ENGINE = [frame("??", 0, "torch::autograd::Engine::evaluate_function(...)")]
MOVED = [frame(MODULE, 9, "convert"), frame(MODULE, 5, "_apply"), frame("/home/me/job/train.py", 3, "main")]
OWN = [frame("train.py", 5, "main")]
STACKS = (FORWARD, FORWARD, OPTIMIZER, BACKWARD, ENGINE, MOVED, OWN, ())
HISTORY = [
    entry("alloc", 300, 50, 1_000_000, OPTIMIZER),
    entry("free_requested", 100, 30, 1_500_000),  # requested before the history begins
    entry("free_completed", 100, 30, 1_500_000),
    entry("segment_alloc", 1 << 40, 1000, 1_600_000),
    entry("alloc", 200, 60, 2_000_000, FORWARD),
    entry("free_requested", 300, 50, 2_500_000),
    entry("alloc", 300, 5, 3_000_000, FORWARD),  # the same address again
    entry("snapshot", 0, 0, 4_000_000),
]
OF_OLDER_TORCH = {"size": 512, "state": "active_allocated"}
OF_OLDER_TORCH["history"] = [{"addr": 1, "real_size": 500, "frames": FORWARD}]
# The segments and the histories of each snapshot.
SNAPSHOTS = {
    "parts add up to reserved memory": (
        segment(block(1024, asked=1000, frames=FORWARD), block(512, "active_awaiting_free"), block(100, "inactive")),
        segment(block(4096, "inactive"), address=1 << 41, more=4),
    ),
    "memory is listed by line and phase of the program": (
        segment(*(block(size, frames=frames) for size, frames in zip((10, 20, 7, 6, 5, 4, 3, 2), STACKS, strict=True))),
    ),
    "the peak is found backward from live blocks at the end": (
        segment(block(60, frames=FORWARD, address=200), block(5, frames=FORWARD, address=300)),
        [HISTORY],
    ),
    "the peak can precede the history": (
        segment(block(10, frames=FORWARD, address=200)),
        [[entry("free_requested", 100, 30, 5), entry("alloc", 200, 10, 6, FORWARD)]],
    ),
    "failed allocations are listed by device": (
        segment(block(8), device=1),
        [[entry("oom", 0, 2**31, 7, FORWARD) | {"device_free": 2**20}], []],
    ),
    "a snapshot of older torch": ({"total_size": 512, "blocks": [OF_OLDER_TORCH], "stream": 0},),
}


def test_contents_of_each_snapshot_are_as_before(tmp_path):
    texts = []
    for claim, parts in SNAPSHOTS.items():
        segments = [part for part in parts if isinstance(part, dict)]
        traces = parts[-1] if isinstance(parts[-1], list) else ()
        found = devices_of(read_snapshot(write(tmp_path, *segments, traces=traces)))
        texts.append(
            f"##### {claim}\n{render_snapshot('dump.pickle', found)}\n{json.dumps(list(map(asdict, found)))}\n"
        )
    assert_golden(Path(__file__).parents[1] / "golden" / "memory_snapshots.txt", "\n".join(texts))


def test_snapshot_of_installed_torch_is_read(tmp_path):
    from torch.cuda._memory_viz import _profile_to_snapshot

    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        net = torch.nn.Linear(64, 64)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            net(torch.randn(128, 64)).square().mean().backward()
            optimizer.step()
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps(_profile_to_snapshot(profile)))
    found = devices_of(read_snapshot(path))
    assert found
    for device in found:
        parts = (device.requested_bytes, device.rounding_bytes, device.awaiting_bytes, device.unused_in_use_bytes)
        assert sum(parts) + device.unused_empty_bytes == device.reserved_bytes
        assert device.peak is not None
        assert device.peak.bytes >= max(device.requested_bytes, 128 * 64 * 4)
        assert sum(held.bytes for held in device.peak.by_place) == device.peak.bytes
        assert {"forward", "backward", "optimizer"} <= {held.phase for held in device.peak.by_phase}
        assert any("test_snapshot_of_installed_torch_is_read" in held.place for held in device.peak.by_place)


class Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a memory snapshot, or cut off"),
        (b"\x80\x04nothing", "is not a memory snapshot, or cut off"),
        (pickle.dumps({"segments": [], "device_traces": []})[:-3], "is not a memory snapshot, or cut off"),
        (pickle.dumps([1, 2]), "is not a memory snapshot of torch: Expected `object`, got `array`"),
        (pickle.dumps({"a": 1}), "missing required field `segments`"),
        (pickle.dumps({"segments": [{"total_size": "x", "blocks": []}]}), "Expected `int`, got `str`"),
        (pickle.dumps({"segments": [Evil()]}), "it would run builtins.print, which is refused"),
    ],
)  # fmt: skip
def test_invalid_snapshot_gives_one_line_and_runs_nothing(content, message, tmp_path, capsys):
    path = tmp_path / "dump.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        devices_of(read_snapshot(path))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


def test_missing_or_too_large_file_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_snapshot(tmp_path / "none.pickle")
    path = write(tmp_path, traces=[[], []])
    assert devices_of(read_snapshot(path)) == []  # no memory is reserved
    with pytest.raises(TraceError, match="the limit"):
        read_snapshot(path, most_bytes=10)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05\x96\xff\x00\x00\x00\x00\x00\x00\x00ab",  # a bytearray that is cut off
        b"\x80\x05]r\xff\xff\xff\x7f.",  # place 2**31 of the memo, which would take 34 GB
        b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # 2**63 bytes
        b"(" * 1_000_000 + b"t" * 1_000_000 + b".",
        pickle.dumps({"segments": [segment(*[block(1)] * 3_000)] * 3_000, "device_traces": []}),
        pickle.dumps({"segments": [], "device_traces": [[entry("alloc", 1, 1)] * 3_000] * 3_000}),
        pickle.dumps({"segments": [segment(block(2**70))]}),
        pickle.dumps({"segments": [], "device_traces": [[entry("alloc", 1, 1, time_us=10**5000)]]}),
    ],
)
def test_a_hostile_pickle_is_refused_in_one_line(tmp_path, capsys, data):
    path = tmp_path / "dump.pickle"
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        devices_of(read_snapshot(path))
    assert str(caught.value).isprintable()
    assert capsys.readouterr() == ("", "")
