"""What fills a device's memory, from snapshots by hand and from one that torch makes of a profile of the CPU."""

import pickle

import pytest
import torch

from training_profiler.errors import TraceError
from training_profiler.trace_analysis.memory.snapshot import Held, OutOfMemory, devices_of, memory_snapshot
from training_profiler.trace_analysis.memory.snapshot_reader import read_snapshot

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
    told = {"size": size, "state": state, "requested_size": size if asked is None else asked, "frames": list(frames)}
    return told | ({} if address is None else {"address": address})


def segment(*blocks, device=0, address=1 << 40, more=0):
    size = sum(one["size"] for one in blocks) + more
    return {"device": device, "address": address, "total_size": size, "blocks": list(blocks), "segment_type": "large"}


def entry(action, addr, size, time_us=0, frames=()):
    return {"action": action, "addr": addr, "size": size, "time_us": time_us, "frames": list(frames), "stream": 0}


def write(folder, *segments, traces=(), **more):
    path = folder / "dump.pickle"
    path.write_bytes(pickle.dumps({"segments": list(segments), "device_traces": list(traces), **more}))
    return path


def test_the_parts_add_up_to_what_is_reserved(tmp_path):
    path = write(
        tmp_path,
        segment(block(1024, asked=1000, frames=FORWARD), block(512, "active_awaiting_free"), block(100, "inactive")),
        segment(block(4096, "inactive"), address=1 << 41, more=4),
        allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": ""},
    )
    (one,) = memory_snapshot(path)
    assert (one.requested_bytes, one.rounding_bytes, one.awaiting_bytes) == (1000, 24, 512)
    assert (one.unused_in_use_bytes, one.unused_empty_bytes, one.largest_unused_bytes) == (100, 4100, 4096)
    assert one.reserved_bytes == 1000 + 24 + 512 + 100 + 4100
    assert one.peak is None


def test_memory_is_told_by_the_programs_own_line_and_its_phase(tmp_path):
    backward = [frame("torch/_tensor.py", 1, "backward"), frame("/home/me/job/train.py", 13, "<module>")]
    engine = [frame("??", 0, "torch::autograd::Engine::evaluate_function(...)")]
    moved = [frame(MODULE, 9, "convert"), frame(MODULE, 5, "_apply"), frame("/home/me/job/train.py", 3, "main")]
    own = [frame("train.py", 5, "main")]
    path = write(
        tmp_path,
        segment(*(block(size, frames=frames) for size, frames in (
            (10, FORWARD), (20, FORWARD), (7, OPTIMIZER), (6, backward), (5, engine), (4, moved), (3, own), (2, ())
        ))),
    )  # fmt: skip
    (one,) = memory_snapshot(path)
    assert one.by_place == (
        Held("model/net.py:31 in forward", "forward", 30, 2),
        Held("job/train.py:14 in <module>", "optimizer", 7, 1),
        Held("job/train.py:13 in <module>", "backward", 6, 1),
        Held("torch::autograd::Engine::evaluate_function(...) (no Python in its stack)", "backward", 5, 1),
        Held("job/train.py:3 in main", "model made or moved", 4, 1),
        Held("train.py:5 in main", "elsewhere", 3, 1),
        Held("no stack recorded", "no stack recorded", 2, 1),
    )
    assert sum(held.bytes for held in one.by_phase) == one.requested_bytes == 57


def test_the_peak_is_found_by_going_back_from_what_lives_at_the_end(tmp_path):
    history = [
        entry("alloc", 300, 50, 1_000_000, OPTIMIZER),
        entry("free_requested", 100, 30, 1_500_000),  # asked for before the history begins
        entry("free_completed", 100, 30, 1_500_000),
        entry("segment_alloc", 1 << 40, 1000, 1_600_000),
        entry("alloc", 200, 60, 2_000_000, FORWARD),
        entry("free_requested", 300, 50, 2_500_000),
        entry("alloc", 300, 5, 3_000_000, FORWARD),  # the same address again
        entry("snapshot", 0, 0, 4_000_000),
    ]
    live = (block(60, frames=FORWARD, address=200), block(5, frames=FORWARD, address=300))
    (one,) = memory_snapshot(write(tmp_path, segment(*live), traces=[history]))
    assert one.peak is not None
    assert (one.peak.bytes, one.peak.before_end_s, one.peak.entries) == (110, 2.0, 8)
    assert one.peak.by_place == (
        Held("model/net.py:31 in forward", "forward", 60, 1),
        Held("job/train.py:14 in <module>", "optimizer", 50, 1),
    )


def test_the_peak_may_have_been_before_anything_was_recorded(tmp_path):
    history = [entry("free_requested", 100, 30, 5), entry("alloc", 200, 10, 6, FORWARD)]
    (one,) = memory_snapshot(write(tmp_path, segment(block(10, frames=FORWARD, address=200)), traces=[history]))
    assert one.peak is not None
    assert (one.peak.bytes, one.peak.before_end_s) == (30, None)
    assert one.peak.by_place == (Held("before the history", "before the history", 30, 1),)


def test_allocations_that_failed_and_devices_are_told_apart(tmp_path):
    failed = entry("oom", 0, 2**31, 7, FORWARD) | {"device_free": 2**20}
    path = write(tmp_path, segment(block(8), device=1), traces=[[failed], []])
    first, second = memory_snapshot(path)
    assert first.out_of_memory == (OutOfMemory(2**31, 2**20, "model/net.py:31 in forward"),)
    assert (first.device, first.reserved_bytes, first.peak) == (0, 0, None)
    assert (second.device, second.reserved_bytes, second.out_of_memory) == (1, 8, ())


def test_what_older_versions_write_is_read(tmp_path):
    old = {"size": 512, "state": "active_allocated", "history": [{"addr": 1, "real_size": 500, "frames": FORWARD}]}
    path = write(
        tmp_path,
        {
            "total_size": 512,
            "blocks": [
                old,
            ],
            "stream": 0,
        },
    )
    (one,) = memory_snapshot(path)
    assert (one.requested_bytes, one.rounding_bytes) == (500, 12)
    assert one.by_place[0].place == "model/net.py:31 in forward"


def test_a_snapshot_that_torch_makes_is_read(tmp_path):
    from torch.cuda._memory_viz import _profile_to_snapshot

    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        net = torch.nn.Linear(64, 64)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(2):
            net(torch.randn(128, 64)).square().mean().backward()
            optimizer.step()
    path = tmp_path / "dump.pickle"
    path.write_bytes(pickle.dumps(_profile_to_snapshot(profile)))
    found = memory_snapshot(path)
    assert found
    for one in found:
        parts = (one.requested_bytes, one.rounding_bytes, one.awaiting_bytes, one.unused_in_use_bytes)
        assert sum(parts) + one.unused_empty_bytes == one.reserved_bytes
        assert one.peak is not None
        assert one.peak.bytes >= max(one.requested_bytes, 128 * 64 * 4)
        assert sum(held.bytes for held in one.peak.by_place) == one.peak.bytes
        assert {"forward", "backward", "optimizer"} <= {held.phase for held in one.peak.by_phase}
        assert any("test_a_snapshot_that_torch_makes_is_read" in held.place for held in one.peak.by_place)


class Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no memory snapshot, or cut off"),
        (b"\x80\x04nothing", "is no memory snapshot, or cut off"),
        (pickle.dumps({"segments": [], "device_traces": []})[:-3], "is no memory snapshot, or cut off"),
        (pickle.dumps([1, 2]), "is no memory snapshot of torch: Expected `object`, got `array`"),
        (pickle.dumps({"a": 1}), "missing required field `segments`"),
        (pickle.dumps({"segments": [{"total_size": "x", "blocks": []}]}), "Expected `int`, got `str`"),
        (pickle.dumps({"segments": [Evil()]}), "it would have builtins.print run, which is refused"),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_one_clear_line_and_nothing_is_run(content, message, tmp_path, capsys):
    path = tmp_path / "dump.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        memory_snapshot(path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert capsys.readouterr().out == ""


def test_a_file_that_is_missing_or_too_large_is_said(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_snapshot(tmp_path / "none.pickle")
    path = write(tmp_path)
    with pytest.raises(TraceError, match="the limit"):
        read_snapshot(path, most_bytes=10)


def test_nothing_reserved_is_no_device(tmp_path):
    assert devices_of(read_snapshot(write(tmp_path, traces=[[], []]))) == []
