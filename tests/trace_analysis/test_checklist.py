import pytest

from tests.support.traces import AUTOGRAD, Trace, gpu
from training_profiler.trace_analysis.checklist import checks, phase_share


def verdicts(trace, tmp_path):
    return {check.what: (check.verdict, check.measured) for check in checks(trace.analysed(tmp_path))}


def test_missing_data_is_not_measured(tmp_path):
    assert {verdict for verdict, _ in verdicts(Trace().op("a", 0, 1), tmp_path).values()} == {"not measured"}


def test_each_target_has_its_measured_value(tmp_path):
    trace = Trace(deviceProperties=[gpu(memory=1000)])
    for i, length in enumerate((100, 100, 100)):
        trace.step(i, 100 * i, length)
    trace.mark("enumerate(DataLoader)#x", 0, 15).op("aten::mm", 20, 5).kernel("k", 20, 110, launched=(21, 1))
    trace.op("autograd::engine::evaluate_function: MmBackward0", 30, 5).kernel(
        "flash_bwd_kernel", 130, 120, launched=(31, 1)
    )
    trace.kernel("ncclDevKernel_AllReduce", 240, 20).copy("HtoD (Pinned -> Device)", 260, 6)
    trace.memory(1, 1, **{"Total Allocated": 500, "Total Reserved": 900})
    assert verdicts(trace, tmp_path) == {
        "GPU utilization": ("PASS", "82.0%"),
        "step time variation (coefficient of variation)": ("PASS", "0.0%"),
        "GPU memory": ("PASS", "90.0%"),
        "data time": ("PASS", "5.0%"),
        "forward": ("PASS", "36.7%"),
        "backward": ("PASS", "40.0%"),
        "optimizer": ("not measured", ""),
        "forward + backward dominate": ("PASS", "76.7%"),
        "flash attention": ("PASS", "0.1 ms"),
        "CPU-GPU transfer gaps": ("FAIL", "2.0%"),
        "all-reduce overlapped with computation": ("FAIL", "50.0%"),
    }


def test_attention_without_a_flash_kernel_fails(tmp_path):
    trace = Trace().op("aten::_scaled_dot_product_attention_math", 0, 5)
    assert verdicts(trace, tmp_path)["flash attention"] == ("FAIL", "none")


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("HtoD (Pinned -> Device)", ("FAIL", "20.0%")),
        ("DtoD (Device -> Device)", ("PASS", "0.0%")),
        ("without a direction", ("not measured", "")),
    ],
)
def test_copies_between_host_and_device_are_transfers(direction, expected, tmp_path):
    trace = Trace().step(1, 0, 100).op("a", 0, 1).copy(direction, 0, 20).kernel("k", 20, 80)
    assert verdicts(trace, tmp_path)["CPU-GPU transfer gaps"] == expected


@pytest.mark.parametrize(
    ("kernel", "what"), [("ncclDevKernel_AllReduce", "all-reduce"), ("ncclDevKernel_AllGather_RING", "communication")]
)
def test_overlap_names_what_communicates(kernel, what, tmp_path):
    found = verdicts(Trace().kernel(kernel, 0, 20).kernel("k", 0, 15, stream=9), tmp_path)
    assert found[f"{what} overlapped with computation"] == ("PASS", "75.0%")


def lagging(steps=2, behind_us=0):
    """Return a trace whose device does all work of the steps after them: 30 us forward and 60 us backward each."""
    trace, free = Trace(), 1000
    if behind_us:
        trace.kernel("k", 0, 1000 + behind_us, launched=(-20, 2))
        free += behind_us
    for i in range(steps):
        at = 500 + 100 * i if behind_us else 900 + 50 * i
        length = 100 if behind_us else 50
        trace.step(i, at, length).op("aten::mm", at, 5)
        trace.kernel("k", free, 30, launched=(at, 1))
        trace.op("autograd::engine::evaluate_function: MmBackward0", at + 10, 5, tid=AUTOGRAD)
        trace.kernel("k", free + 30, 60, launched=(at + 10, 1), tid=AUTOGRAD)
        free += 90
    return trace


@pytest.mark.parametrize(("behind_us", "share"), [(0, 60 / 280), (500, 1 / 3)])
def test_shares_of_phases_are_of_the_time_that_the_device_had(behind_us, share, tmp_path):
    """It begins 100 us after the first step, or when earlier work is done, and goes on after the last."""
    found = lagging(behind_us=behind_us).analysed(tmp_path)
    assert found.phases.times_ns == {"forward": 60_000, "backward": 120_000, "optimizer": 0}
    assert phase_share(found, "forward") == pytest.approx(share)


def test_passes_at_the_same_time_are_no_more_than_all_of_it(tmp_path):
    trace = Trace().step(1, 0, 100).op("aten::mm", 0, 5).kernel("k", 10, 85, launched=(1, 1))
    trace.op("autograd::engine::evaluate_function: MmBackward0", 6, 3, tid=AUTOGRAD)
    trace.kernel("k", 10, 85, launched=(7, 1), tid=AUTOGRAD, stream=9)
    assert verdicts(trace, tmp_path)["forward + backward dominate"] == ("PASS", "85.0%")
