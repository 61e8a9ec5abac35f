from tests.support.traces import Trace, gpu
from training_profiler.trace_analysis.checklist import checks


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
        "optimizer": ("PASS", "0.0%"),
        "forward + backward dominate": ("PASS", "76.7%"),
        "flash attention": ("PASS", "0.1 ms"),
        "CPU-GPU transfer gaps": ("FAIL", "2.0%"),
        "all-reduce overlapped with computation": ("FAIL", "50.0%"),
    }


def test_attention_without_a_flash_kernel_fails(tmp_path):
    trace = Trace().op("aten::_scaled_dot_product_attention_math", 0, 5)
    assert verdicts(trace, tmp_path)["flash attention"] == ("FAIL", "none")
