"""What an analysis finds in small traces, one claim each; the figures are in a golden file."""

import json
from pathlib import Path

import pytest

from tests.support.golden import assert_golden
from tests.support.simulated_server import Server, served
from tests.support.simulated_training import KERNEL, Loop, simulated
from tests.support.traces import AUTOGRAD, LOOP, Trace, gpu
from training_profiler.trace_analysis.report_figures import trace_data
from training_profiler.trace_analysis.report_views import render_view

MM_BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
A100 = "NVIDIA A100-SXM4-80GB"  # 312 TFLOP/s in bfloat16, 19.5 in float32, 156 in tf32; 2.039 TB/s
H100 = "NVIDIA H100 80GB HBM3"
BF16 = "c10::BFloat16"


def graph_of_three():
    trace = Trace().op("replay", 0, 20).call("cudaGraphLaunch", 1, 15, correlation=5)
    for i in range(3):
        trace.kernel("k", 20 + 10 * i, 5, correlation=5)
    return trace


def numbered_apart():
    """Torch 2.3 numbers calls apart from operators if it records Python functions."""
    trace = Trace()
    for i in range(4):
        trace.op("aten::mm" if i else "aten::sort", 100 * i, 20, **{"External id": i + 3})
        trace.call("cudaLaunchKernel", 100 * i + 5, 5, correlation=i + 1, **{"External id": i + 1})
        trace.kernel("k", 100 * i + 20, 7, correlation=i + 1, **{"External id": i + 1})
    return trace


def of_a_pipeline():
    trace = Trace().step(1, 0, 1000)
    for number, mark in enumerate(("attn(F)", "attn(B)", "mlp(W)", "pack")):
        trace.mark(mark, 100 * number, 50).kernel("k", 100 * number + 60, 10 + number, launched=(100 * number + 1, 1))
    return trace


def peaking():
    trace = Trace(deviceProperties=[gpu(memory=1000)]).step(1, 0, 100).step(2, 100, 100).mark("forward_pass", 110, 50)
    for ts, level in ((10, 100), (120, 400), (130, 200)):
        trace.memory(ts, 1, **{"Total Allocated": level, "Total Reserved": 500})
    return trace


def joined_recordings():
    trace = Trace()
    for begin, operator in ((0, "aten::mm"), (10_000, "aten::add"), (20_000, "aten::mul")):
        trace.op(operator, begin, 20).call("cudaLaunchKernel", begin + 5, 5, correlation=1)
        trace.kernel("k", begin + 20, 7, correlation=1)
    return trace


def of_mtia():
    trace = Trace().step(1, 0, 100).op("aten::mm", 0, 20)
    trace.event("mtia_runtime", "runFunction - job_prep_and_submit_for_execution", 5, 5, correlation=3)
    trace.event("mtia_ccp_events", "fc-dtype_Float", 20, 10, pid=9, tid=4)
    trace.event("mtia_ccp_events", "dma_request", 50, 10, pid=9, tid=4, direction="DEVICE_TO_HOST", size=64)
    return trace.event("mtia_ccp_events", "event_wait", 70, 10, pid=9, tid=4, stream=1)


def of_other_kinds(runtime):
    trace = Trace().step(1, 0, 100).op("aten::mm", 0, 20).event(runtime, "urEnqueueKernelLaunch", 5, 5, correlation=3)
    return trace.kernel("gemm_kernel", 20, 60, correlation=3)


def captured(counts=(3,), names=None, kernels=("a", "b", "c")):
    """Return a replay of a graph after captures with so many launches of three operators."""
    trace, at = Trace(), 0
    for count in counts:
        trace.call("cudaStreamBeginCapture", at, 1)
        for i in range(count):
            trace.op(f"aten::op{i % 3}", at + 2 + 10 * i, 8)
            extra = {} if names is None else {"kernel": names[i]}
            call = "hipLaunchKernel" if names else "cudaLaunchKernel"
            trace.call(call, at + 4 + 10 * i, 2, correlation=1000 + at + i, **extra)
        at += 10 * count + 5
        trace.call("cudaStreamEndCapture", at, 1)
        at += 10
    trace.op("replay", 500, 20).call("cudaGraphLaunch", 505, 10, correlation=7)
    for i, name in enumerate(kernels):
        trace.kernel(name, 520 + 10 * i, 4, correlation=7)
    return trace


NAMES = [f"k{i}" for i in range(30)]
OPERATORS = {
    "devices are analysed one by one": Trace(deviceProperties=[gpu("A"), gpu("B")])
    .step(1, 0, 100)
    .kernel("k", 0, 50)
    .kernel("k", 25, 50, device=1),
    "without a device there are no figures of devices": Trace().step(1, 0, 100).op("aten::mm", 0, 50),
    "the launch of a graph is that of no single kernel": graph_of_three(),
    "an operator that the trace names precedes the one around the call": Trace()
    .op("aten::a", 0, 8, **{"External id": 1})
    .op("aten::b", 8, 5, **{"External id": 2})
    .call("cudaLaunchKernel", 8, 0, correlation=3, **{"External id": 1})
    .kernel("k", 9, 4, correlation=3),
    "ids of calls that are those of operators at other times are not used": numbered_apart(),
    "device time without an operator is the call's": Trace().kernel("k", 9, 4, launched=(0, 1)),
    "device time of an operator includes operators that it calls": Trace()
    .op("aten::linear", 0, 20)
    .op("aten::addmm", 1, 10)
    .kernel("k", 30, 7, launched=(2, 1)),
    "calls with different shapes have lines of their own": Trace()
    .op("aten::mm", 0, 5, **{"Input Dims": [[2, 3], [3, 4]]})
    .op("aten::mm", 10, 7, **{"Input Dims": [[8, 8]]}),
    "an operator that calls itself with other shapes has a total for each": Trace()
    .op("aten::nan_to_num", 0, 100, **{"Input Dims": [[4]]})
    .op("aten::nan_to_num", 10, 80, **{"Input Dims": [[4, 4]]})
    .op("aten::nan_to_num", 20, 30, **{"Input Dims": [[4]]})
    .kernel("k", 200, 7, launched=(25, 1)),
    "the thread of autograd is in the section of the loop": Trace()
    .step(1, 0, 100)
    .mark("backward_pass", 10, 50)
    .op("aten::mm", 20, 5, tid=AUTOGRAD),
    "the phase follows from what launched the work": Trace()
    .step(1, 0, 1000)
    .op("aten::mm", 0, 10)
    .kernel("k", 20, 30, launched=(1, 1))
    .op(MM_BACKWARD, 100, 10, tid=AUTOGRAD)
    .kernel("k", 120, 60, launched=(101, 1), tid=AUTOGRAD)
    .mark("Optimizer.step#AdamW.step", 200, 50)
    .kernel("multi_tensor_apply_kernel", 260, 10, launched=(201, 1)),
    "marks of a pipeline name the phases of what has no operator of autograd": of_a_pipeline(),
    "a collective has its bytes and its hidden time": Trace()
    .kernel("k", 30, 30, stream=9)
    .kernel("ncclDevKernel", 0, 40, **{"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "BFloat16"}),
    "unrecorded bytes are unknown": Trace().kernel("ncclDevKernel_AllGather", 0, 40),
    "bytes of an unknown type are": Trace().kernel("ncclAllGather", 0, 40, **{"In msg nelems": 10, "dtype": "unheard"}),
    "the peak of memory has its step and section": peaking(),
    "memory without a recorded level is the sum of changes": Trace()
    .op("a", 0, 1)
    .memory(1, 100)
    .memory(2, 50)
    .memory(3, -120),
    "joined recordings that count launches from 1 keep their own": joined_recordings(),
    "a device without a name has none": Trace(deviceProperties=[{"id": 0, "name": None}]).kernel("k", 0, 1),
    "a single name is that of all devices": Trace(deviceProperties=[gpu("MI300X")]).kernel("k", 0, 5, device=2),
    "work of MTIA is device work": of_mtia(),
    "calls of XPU launch work": of_other_kinds("xpu_runtime"),
    "calls of PrivateUse1 do": of_other_kinds("privateuse1_runtime"),
    "operators of HPU do": of_other_kinds("hpu_op"),
    "kernels of a graph belong to the operators that were captured": captured(),
    "names on the calls decide which kernel is whose; the last call made none": captured((30,), NAMES, NAMES[:-1]),
    "kernels of two captures that fit stay with the replay": captured((3, 3)),
    "kernels of a capture with other calls do": captured((4,)),
    "kernels of no capture do": captured(()),
    "collectives of the host are named": Trace()
    .step(1, 0, 100)
    .mark("gloo:all_reduce", 10, 30, tid=9)
    .mark("gloo:all_reduce", 50, 20, tid=8),
    "an annotation with a stream is not device work": Trace()
    .kernel("k", 0, 1)
    .event("gpu_user_annotation", "ProfilerStep#1", 0, 5, stream=7, device=0),
    "old names of categories are read": Trace()
    .event("Operator", "aten::mm", 0, 5)
    .event("Runtime", "cudaLaunchKernel", 1, 1, correlation=4)
    .event("Kernel", "volta_sgemm", 3, 4, device=0, stream=7, correlation=4)
    .event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 8, 1, device=0, stream=7, bytes=64)
    .event("Operator", "ProfilerStep#5", 0, 20),
}


def between(*host, launched=(95, 2), length=90, **kwargs):
    """Return a trace with a gap from 10 to 10 + length us; ``host`` are the host events during it."""
    trace = Trace().step(1, 0, 500).kernel("k", 0, 10, launched=(0, 1))
    for category, name, ts, dur, *tid in host:
        trace.event(category, name, ts, dur, tid=tid[0] if tid else LOOP)
    trace.kernel("k", 10 + length, 10, launched=launched, **kwargs)
    return trace.op("the last", 490, 5)


def read_before(begin):
    trace = Trace().op("aten::item", begin, 20).call("cudaMemcpyAsync", begin + 1, 2).op("a", 200, 1)
    return trace.kernel("k", 0, 10).kernel("k", 100, 10, launched=(97, 1))


def slow_launch(us):
    trace = Trace().op("aten::mm", 20, us + 30).kernel("k", 0, 10)
    return trace.kernel("gemm", us + 45, 10, launched=(30, us)).kernel("k", us + 60, 10)


def slow_launch_that_begins_at_once(us):
    trace = Trace().op("aten::mm", 0, us + 20).kernel("gemm", 15, 10, launched=(10, us))
    return trace.op("aten::add", us + 30, 20).kernel("k", us + 50, 10, launched=(us + 40, 5))


def many_launches():
    trace = Trace().kernel("k", 0, 10)
    for at in range(20, 4000, 100):
        trace.op("aten::view", at, 90)
    return trace.kernel("k", 4010, 10, launched=(4000, 5))


def unknown_launches(others):
    trace = (
        Trace().op("aten::a", 10, 6970).kernel("k", 0, 10, launched=(-5, 2)).kernel("k", 6980, 10, launched=(6970, 5))
    )
    for i in range(others):
        trace.kernel("k", 200 + 1000 * i, 900)
    return trace


def without_launch(host, begin=100, **args):
    """Return a trace with known launches, and a last work without a recorded one; ``host`` runs until it begins."""
    trace = Trace().op("first", 0, 5).kernel("k", 5, 5, launched=(1, 2)).op(host, 10, begin - 5)
    trace.events[-3]["args"]["correlation"] = trace.events[-2]["args"]["correlation"] = 50
    return trace.kernel("dma_request", begin, 10, cat="gpu_memcpy", **args)


def on_xpu(call):
    trace = Trace().op("first", 0, 5).event("xpu_runtime", "urEnqueueKernelLaunch", 1, 2, correlation=1)
    trace.kernel("k", 5, 5, correlation=1).event("xpu_runtime", call, 10, 80)
    trace.event("xpu_runtime", "urEnqueueKernelLaunch", 95, 2, correlation=2).kernel("k", 100, 5, correlation=2)
    return trace.op("last", 110, 5)


def stalled(*stalls):
    """Return a trace whose host is for so long in an operator, in which or after which a kernel is launched."""
    trace = Trace().kernel("k", 0, 10)
    for at, us, kernel, operator, launches in stalls:
        trace.op(operator, at, us if launches else us - 50).kernel(kernel, at + us, 10, launched=(at + us - 20, 5))
    return trace


def of_several(*host):
    """Return a trace with a stall of 8 ms, with these operators or annotations in it."""
    trace = Trace().op("first", 0, 5).kernel("k", 5, 5, launched=(1, 2))
    for category, name, ts, dur in host:
        trace.event(category, name, ts, dur)
    return trace.mark("launching", 8000, 30).kernel("k", 8010, 5, launched=(8005, 2))


FIRST = (20, 8000, "gemm", "aten::mm", True)
OF_XPU = ("urEnqueueUSMMemcpy", "urEnqueueMemBufferRead", "piextUSMEnqueueFill", "zeCommandListAppendMemoryCopy",
          "urUSMDeviceAlloc", "zeMemFree", "urEventWait", "urEnqueueKernelLaunch")  # fmt: skip
GAPS = {
    "29.999 us are no gap": Trace().kernel("k", 0, 10).kernel("k", 39.999, 10),
    "30 us are one": Trace().kernel("k", 0, 10).kernel("k", 40, 10),
    "a gap beside a collective is a wait for communication": Trace()
    .op("a", 0, 1)
    .kernel("ncclDevKernel_AllReduce", 0, 10, launched=(0, 1))
    .kernel("k", 100, 10, launched=(2, 1))
    .op("b", 200, 1),
    "a loader is the cause of what it does": between(
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 80),
        ("cpu_op", "aten::stack", 20, 60),
    ),
    "a copy that the host waits for blocks": between(
        ("cpu_op", "aten::copy_", 10, 80), ("cuda_runtime", "cudaMemcpyAsync", 12, 70)
    ),
    "what was launched long before waits on the device": between(launched=(2, 1)),
    "for another stream": between(launched=(2, 1)).kernel("k", 0, 105, device=1),
    "for another device": between(launched=(2, 1)).kernel("k", 10, 88, device=1),
    "a host in the profiler is recording": between(
        ("user_annotation", "(profiler)", 10, 80), ("cuda_runtime", "cudaEventQuery", 20, 5)
    ),
    "what waits for a millisecond waits for work that is not recorded": between(launched=(2, 1), length=1100),
    "the larger of two causes is named with its part": between(
        ("cuda_runtime", "cudaStreamSynchronize", 10, 50), ("cpu_op", "aten::mm", 60, 40), launched=(98, 2)
    ),
    "a wait for a launching thread is not a synchronization": between(
        ("cuda_runtime", "cudaStreamSynchronize", 10, 80, LOOP),
        ("cpu_op", "MulBackward0", 10, 80, AUTOGRAD),
        tid=AUTOGRAD,
    ),
    "the cause is unknown outside of the recording of the host": Trace()
    .op("a", 0, 1)
    .kernel("k", 0, 10)
    .kernel("k", 1000, 10),
    "each device has gaps of its own": Trace()
    .kernel("k", 0, 10)
    .kernel("k", 100, 10)
    .kernel("k", 0, 60, device=1)
    .kernel("k", 100, 10, device=1),
    "a gap names the work that ended it and its launch": Trace()
    .step(4, 0, 200)
    .mark("forward_pass", 0, 150)
    .op("aten::mm", 95, 10)
    .kernel("k", 0, 10)
    .kernel("volta_sgemm", 100, 10, launched=(96, 2)),
    "a gap follows a read that was open at its begin": read_before(5),
    "and not one that was not": read_before(50),
    "one slow launch is a stall": slow_launch(2500),
    "one of under a millisecond is not": slow_launch(900),
    "one slow launch is a stall also if its kernel begins at once": slow_launch_that_begins_at_once(2500),
    "and is not under a millisecond": slow_launch_that_begins_at_once(900),
    "many launches in one gap are launch-bound": many_launches(),
    "five milliseconds without a launch are a stall": unknown_launches(0),
    "and are none where most launches are unknown": unknown_launches(6),
    "operators are not charged with work that may have been launched before": without_launch("aten::mm"),
    "a copy is charged": without_launch("aten::_copy_from"),
    "work with a number before all others was launched before the recording": without_launch(
        "aten::mm", correlation=49
    ),
    "with a later number it is unknown": without_launch("aten::mm", correlation=51),
    **{f"{call} has its cause": on_xpu(call) for call in OF_XPU},
    "a stall before the first run of a kernel by the operator that launches it": stalled(FIRST),
    "a stall of another operator loads nothing": stalled((20, 8000, "gemm", "aten::sort", False)),
    "the first copy loads nothing": Trace()
    .kernel("k", 0, 10)
    .op("my::load", 20, 8000)
    .copy("HtoD (Pinned -> Device)", 8000, 10, launched=(7990, 5)),
    "what stalls as long again does not load a kernel": stalled(FIRST, (9000, 8000, "gemm", "aten::mm", True)),
    "nor what stalls nearly as long": stalled(FIRST, (9000, 5500, "gemm", "aten::mm", True)),
    "an operator that loads two kernels stalls twice": stalled(FIRST, (9000, 8000, "another_gemm", "aten::mm", True)),
    "a fill of the workspace of a new kernel belongs to its first run": Trace()
    .kernel("k", 0, 10)
    .op("aten::cudnn_convolution", 20, 8000)
    .kernel("Memset (Device)", 7995, 1, cat="gpu_memset", launched=(7990, 2), by="cudaMemsetAsync")
    .kernel("scudnn", 8010, 5, launched=(8000, 2)),
    "time between calls is of Python where operators are recorded": Trace()
    .kernel("k", 0, 10, launched=(0, 2))
    .kernel("k", 100, 10, launched=(95, 2))
    .op("a", 120, 5),
    "and unknown where they are not": Trace()
    .kernel("k", 0, 10, launched=(0, 2))
    .kernel("k", 100, 10, launched=(95, 2))
    .mark("a", 120, 5),
    "a stall names the operators and the annotation that the host was in": of_several(
        ("user_annotation", "clear", 10, 7000),
        ("cpu_op", "aten::zeros", 20, 3500),
        ("cpu_op", "aten::fill_", 30, 3400),
        ("cpu_op", "aten::mul", 3600, 3000),
    ),
    "short operators have no names": of_several(*(("cpu_op", "aten::add", at, 90) for at in range(20, 7900, 100))),
    "a short part of a stall is not its cause": of_several(("cpu_op", "aten::zeros", 20, 1500)),
    "more than half of it is": of_several(("cpu_op", "aten::zeros", 20, 4500)),
    "gaps inside a replay of a graph": served(Server(pause_us=60, python_us=50))[0],
    "gaps between replays": served(Server())[0],
    "a long launch of a graph is not a stall": served(Server(launch_us=3000, kernels=20, python_us=50))[0],
}


def within(*frames):
    """Return a trace with Python functions and modules of the loop."""
    trace = Trace()
    for name, ts, dur in frames:
        trace.event("python_function", name, ts, dur)
    return trace


def with_stacks():
    stack = "/opt/lib/python3.8/site-packages/torch/_ops.py(4): mm;/home/me/net.py(31): forward;train.py(5): <module>"
    trace = Trace().mark("Optimizer.step#SGD.step", 0, 100, **{"Call stack": "train.py(7): <module>"})
    trace.op("aten::add_", 10, 20, **{"Call stack": "torch/optim/sgd.py(80): step;train.py(7): <module>"})
    trace.op("aten::mm", 200, 50, **{"Call stack": stack}).step(1, 0, 300)
    trace.events[-1]["args"]["Call stack"] = "train.py(9): <module>"  # the line that ended the step before
    return trace


def partly_in(us, module_us):
    """Return a trace with a gap of 80 us, of which the host is for so long in a line and in a module."""
    modules = [("nn.Module: Net_0", 10, module_us), ("nn.Module: Head_0", 10 + module_us, 24)] if module_us else []
    trace = within(*modules, ("train.py(3): work", 10, us), ("train.py(9): more", 10 + us, 25))
    return trace.kernel("k", 0, 10, launched=(0, 2)).op("aten::mm", 5, 90).kernel("k", 90, 10, launched=(85, 5))


CODE = {
    "a gap belongs to the innermost module and line of the program": within(
        ("train.py(9): main", 0, 900),
        ("nn.Module: Net_0", 100, 700),
        ("model/net.py(41): forward", 110, 680),
        ("nn.Module: Linear_0", 200, 500),
        ("torch/nn/modules/linear.py(114): forward", 210, 480),
        ("<built-in function linear>", 220, 400),
    )
    .kernel("a", 0, 10, launched=(0, 2))
    .kernel("b", 650, 100, launched=(640, 10)),
    "time after the launch belongs to the place of the launch": within(
        ("nn.Module: Early_0", 0, 100), ("nn.Module: Late_0", 100, 900)
    )
    .kernel("a", 0, 10, launched=(0, 2))
    .kernel("b", 500, 10, launched=(50, 10)),
    "recursion counts once": within(*(("nn.Module: Tree_0", 10 * depth, 100 - 20 * depth) for depth in range(4))),
    "of kernels that overlap each moment counts once": within(("nn.Module: A_0", 0, 10), ("nn.Module: B_0", 10, 10))
    .kernel("a", 20, 100, launched=(2, 2), stream=7)
    .kernel("b", 50, 20, launched=(12, 2), stream=9),
    "work of the thread of autograd belongs to the line that waits for it": within(("train.py(12): step", 0, 100))
    .step(1, 0, 200)
    .op("MmBackward0", 20, 10, tid=AUTOGRAD)
    .kernel("k", 30, 40, launched=(22, 5), tid=AUTOGRAD),
    "call stacks of operators name the line that ran": with_stacks(),
    "modules of TorchScript are read from operators": Trace()
    .op("aten::mm", 0, 50, **{"Module Hierarchy": "top(Net)::forward.fc(Linear)::forward"})
    .op("aten::add", 60, 5, **{"Module Hierarchy": ""}),
    "an idle device is reported with the place of the longest gap": within(
        ("nn.Module: Slow_0", 10, 1500), ("train.py(3): work", 5, 1600)
    )
    .step(1, 0, 2000)
    .kernel("a", 0, 10, launched=(0, 2))
    .kernel("b", 1500, 100, launched=(1490, 5)),
    "a line of half of a gap has no share": partly_in(40, 0),
    "a line of less has one": partly_in(30, 0),
    "a module of half of a gap has no share": partly_in(40, 60),
    "its line has one": partly_in(30, 60),
    "both have one": partly_in(30, 32),
}


def inputs(shapes, types=None):
    return {"Input Dims": shapes} | ({} if types is None else {"Input type": types})


def rates(operator, device=A100, given=None, **kwargs):
    trace, _ = simulated(Loop(operator=operator, inputs=given, **kwargs))
    trace.top["deviceProperties"] = [gpu(device)]
    return trace


def on_tensor_cores():
    trace = Trace(deviceProperties=[gpu(A100)])
    for at, name, columns in ((0, KERNEL, 1024), (1000, "ampere_sgemm_tensorop_s1688gemm_tf32", 2048)):
        trace.op("aten::mm", at, 20, **inputs([[1024, 1024], [1024, columns]], ["float"] * 2))
        trace.kernel(name, at + 30, 500, launched=(at + 2, 5))
    return trace


def copy_and_fill():
    given = inputs([[1000], [1000], []], ["float", "float", "Scalar"])
    trace = Trace(deviceProperties=[gpu(A100)]).op("aten::copy_", 0, 20, **given).op("aten::zero_", 100, 20, **given)
    trace.copy("HtoD (Pageable -> Device)", 30, 10, launched=(2, 5))
    return trace.kernel("Memset (Device)", 130, 10, cat="gpu_memset", by="cudaMemsetAsync", launched=(102, 5))


def captured_product():
    trace = Trace(deviceProperties=[gpu(A100)]).call("cudaStreamBeginCapture", 0, 1)
    trace.op("aten::mm", 2, 20, **inputs([[64, 64]] * 2, [BF16] * 2)).call("cudaLaunchKernel", 5, 2, correlation=1)
    trace.call("cudaStreamEndCapture", 30, 1)
    for i in range(3):
        trace.call("cudaGraphLaunch", 100 * (i + 1), 5, correlation=10 + i)
        trace.kernel("gemm", 100 * (i + 1) + 10, 20, correlation=10 + i)
    return trace


def numbered_on_their_own():
    """ROCm once: the kernel has the id of its call, which is that of another operator."""
    trace = Trace(deviceProperties=[gpu(A100)])
    for i in range(4):
        trace.op("aten::mm", 100 * i, 20, **{"External id": i + 1} | inputs([[64, 64], [64, 64]], [BF16, BF16]))
        trace.call("hipExtModuleLaunchKernel", 100 * i + 5, 5, **{"External id": 2 * i + 2})
        trace.kernel("Cijk_Ailk_Bljk_HHS_BH_MT64x128x32_MI16x16x16x1", 100 * i + 20, 50, **{"External id": 2 * i + 2})
    return trace


LARGE = [[4096, 4096]] * 2
ROOFLINE = {
    "operators without a formula have no rate": rates("aten::sort", given=inputs([[4]])),
    "rates of a known product": rates("aten::mm", given=inputs(LARGE, [BF16] * 2), steps=2, kernels=3, kernel_us=1000),
    "an element-wise operator is bound by memory": rates(
        "aten::add", given=inputs([[10**8], [10**8], []], ["float"] * 3), kernels=1, kernel_us=1000
    ),
    "float32 on tensor cores has the peak of tf32": on_tensor_cores(),
    "rates above the roof are marked": rates("aten::mm", given=inputs(LARGE, [BF16] * 2), kernel_us=10),
    "what is missing of an unknown device is named": rates("aten::mm", "Some GPU", inputs(LARGE, [BF16] * 2)),
    "and of one whose bandwidth is unknown": rates("aten::mm", "NVIDIA A100", inputs(LARGE, [BF16] * 2)),
    "and of inputs without types": rates("aten::mm", "Some GPU", inputs(LARGE)),
    "copies of the host are left out and fills are not": copy_and_fill(),
    "a captured call counts with each replay": captured_product(),
    "ids that number calls and operators on their own": numbered_on_their_own(),
    "kernels that may be missing are said": rates("aten::mm", given=inputs(LARGE), loses=frozenset(range(9))),
    "without kernels there are no rates": Trace().op("aten::mm", 0, 1),
    "long shapes fit the terminal": rates(
        "aten::cudnn_convolution_backward_input",
        given=inputs([[1024, 96, 647, 3], [1024, 96, 647, 3], []], ["float"] * 3),
    ),
}


def collectives(*runs, devices=8, name=H100, size=8, ranks=None, dtype="BFloat16", **args):
    """Return a trace with collectives: name, elements sent and received, us."""
    trace = Trace(deviceProperties=[gpu(name)] * devices)
    for kind, sent, received, us in runs:
        given = {"In msg nelems": sent, "Out msg nelems": received, "Group size": size, "dtype": dtype}
        given["Process Group Ranks"] = str(list(range(size)) if ranks is None else ranks)
        trace.kernel("ncclDevKernel_X", 0, us, stream=9, **{"Collective name": kind}, **(given | args))
    return trace


REDUCE = ("allreduce", 2**25, 2**25, 1000)  # 64 MiB of bfloat16 on 8 devices in 1 ms: 67.1 GB/s of the message
SMALL = ("allreduce", 64, 64, 10)
BANDWIDTH = {
    "all_reduce": collectives(REDUCE),
    "all_gather": collectives(("_allgather_base", 2**22, 2**25, 1000)),
    "all_gather without what is received": collectives(("_allgather_base", 2**22, 0, 1000)),
    "reduce_scatter": collectives(("_reduce_scatter_base", 2**25, 2**22, 1000)),
    "all_to_all": collectives(("all_to_allv", 2**25, 2**25, 1000)),
    "broadcast": collectives(("broadcast", 2**25, 2**25, 1000)),
    "receive": collectives(("recv", 0, 2**25, 1000)),
    "the shortest run waited least and is compared with the link": collectives(REDUCE, (*REDUCE[:3], 3000)),
    "without a type the message is unknown": collectives(REDUCE, dtype=None),
    "without elements it is": collectives(REDUCE, **{"In msg nelems": None}),
    "of too many elements it is": collectives(REDUCE, **{"In msg nelems": 2**62}),
    "without ranks the group is": collectives(REDUCE, **{"Group size": None, "Process Group Ranks": None}),
    "what waits is not a collective": collectives(("wait", 2**25, 2**25, 1000)),
    "of a kernel alone all is": collectives(REDUCE).kernel("ncclDevKernel_Generic", 2000, 500, stream=9),
    "an all-reduce in the switch has no share above 100%": collectives(("allreduce", 2**25, 2**25, 250)),
    "the link is known of half a node": collectives(SMALL, size=2, ranks=[0, 1, 2, 3]),
    "and of another node": collectives(SMALL, size=2, ranks=[8, 9]),
    "and not of two nodes": collectives(SMALL, size=2, ranks=[7, 8]),
    "nor of one device of each": collectives(SMALL, size=2, ranks=[0, 8]),
    "nor where each rank has a node of one device": collectives(SMALL, size=2, ranks=[0, 1], devices=1),
    "nor of a device without one": collectives(SMALL, size=2, ranks=[0, 1], name="NVIDIA A10"),
    "nor where ranks are left out": collectives(SMALL, size=2, ranks="[0, 1, ..., 15]"),
    "it is known of a device that the trace lists by another number": collectives(
        SMALL, size=2, ranks=[0, 1], device=8
    ),
}


def healthy():
    trace = Trace(deviceProperties=[gpu(memory=1000)])
    for i in range(3):
        trace.step(i, 100 * i, 100)
    trace.mark("enumerate(DataLoader)#x", 0, 15).op("aten::mm", 20, 5).kernel("k", 20, 110, launched=(21, 1))
    trace.op(MM_BACKWARD, 30, 5).kernel("flash_bwd_kernel", 130, 120, launched=(31, 1))
    trace.kernel("ncclDevKernel_AllReduce", 240, 20).copy("HtoD (Pinned -> Device)", 260, 6)
    return trace.memory(1, 1, **{"Total Allocated": 500, "Total Reserved": 900})


def copying(direction):
    return Trace().step(1, 0, 100).op("a", 0, 1).copy(direction, 0, 20).kernel("k", 20, 80)


def lagging(steps=2, behind_us=0):
    """Return a trace whose device does all work of the steps after them: 30 us forward and 60 us backward each."""
    trace, free = Trace(), 1000
    if behind_us:
        for i in range(10):
            trace.kernel("k", i * (100 + behind_us / 10), 100 + behind_us / 10, launched=(i - 20, 1))
        free += behind_us
    for i in range(steps):
        at = 500 + 100 * i if behind_us else 900 + 50 * i
        trace.step(i, at, 100 if behind_us else 50).op("aten::mm", at, 5).kernel("k", free, 30, launched=(at, 1))
        trace.op(MM_BACKWARD, at + 10, 5, tid=AUTOGRAD)
        trace.kernel("k", free + 30, 60, launched=(at + 10, 1), tid=AUTOGRAD)
        free += 90
    return trace


CHECKLIST = {
    "missing data is not measured": Trace().op("a", 0, 1),
    "each target has its measured value": healthy(),
    "attention without a flash kernel fails": Trace().op("aten::_scaled_dot_product_attention_math", 0, 5),
    "copies from the host are transfers": copying("HtoD (Pinned -> Device)"),
    "copies from device to device are none": copying("DtoD (Device -> Device)"),
    "copies without a direction are unknown": copying("without a direction"),
    "overlap names all-reduces": Trace().kernel("ncclDevKernel_AllReduce", 0, 20).kernel("k", 0, 15, stream=9),
    "and other communication": Trace().kernel("ncclDevKernel_AllGather_RING", 0, 20).kernel("k", 0, 15, stream=9),
    "shares of phases are of the time from the first work of the steps": lagging(),
    "or from when earlier work is done": lagging(behind_us=500),
    "passes at the same time are no more than all of it": Trace()
    .step(1, 0, 100)
    .op("aten::mm", 0, 5)
    .kernel("k", 10, 85, launched=(1, 1))
    .op(MM_BACKWARD, 6, 3, tid=AUTOGRAD)
    .kernel("k", 10, 85, launched=(7, 1), tid=AUTOGRAD, stream=9),
}


def reduced(trace, count=5, tid=LOOP):
    for i in range(count):
        trace.op("c10d::allreduce_", 100 * i, 20, tid=tid)
        trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 100 * i + 30, 60, launched=(100 * i + 5, 2), tid=tid)
    return trace


def backward():
    return Trace().op(MM_BACKWARD, 0, 2000, tid=AUTOGRAD)


PARALLELISM = {
    "DDP": reduced(backward().mark("DistributedDataParallel.forward", 0, 5), tid=AUTOGRAD),
    "FSDP by name": reduced(Trace().mark("FSDP::pre_forward", 0, 5)),
    "FSDP by collectives": Trace().kernel("ncclDevKernel_AllGather", 0, 5).kernel("ncclDevKernel_ReduceScatter", 9, 5),
    "a pipeline": Trace().op("c10d::send", 0, 5).kernel("ncclDevKernel_SendRecv", 0, 5),
    "experts": Trace().kernel("void dpsk::ep::intranode::dispatch<8>()", 0, 5),
    "tensors": reduced(backward()),
    "a metric that is reduced is none": reduced(backward(), count=1),
    "one device has none": Trace().mark("FSDP::pre_forward", 0, 5).kernel("k", 0, 5),
    "sends and receives of an all-to-all get its advice first": reduced(
        backward().mark("DistributedDataParallel.forward", 0, 5), count=2, tid=AUTOGRAD
    )
    .op("nccl:all_to_all", 900, 20)
    .kernel("ncclDevKernel_SendRecv", 950, 900, launched=(905, 2)),
}
TO_NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>"
TO_NCHW = "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>"
OF_MIOPEN = "batched_transpose_32x32_pack_2x2_ediv_2x2_half"
CONVOLUTION = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32"


def converting(us, idle=0, steps=1, names=(TO_NHWC, TO_NHWC, TO_NCHW), call_us=5, **top):
    """Return steps of 1000 us with three conversions of ``us`` in all around a convolution, then ``idle`` us."""
    trace = Trace(**top)
    for i in range(steps):
        at, launched = 1000 * i, 1000 * i + 1
        trace.step(i, at, 1000).op("aten::convolution", at, 4 * call_us + 2)
        for name, length in (*((name, us / 3) for name in names), (CONVOLUTION, 1000 - us - idle)):
            trace.kernel(name, at, length, launched=(launched, call_us))
            at, launched = at + length, launched + call_us
    return trace


def converting_and_waiting():
    """Return two steps, in one of which the device waits for the host."""
    trace = converting(90)
    trace.events += [event | {"ts": event["ts"] + 1000} for event in converting(90, 500).step(2, 0, 0).events[:-1]]
    for event in trace.events[len(trace.events) // 2 :]:
        if "correlation" in event["args"]:
            event["args"] = event["args"] | {"correlation": event["args"]["correlation"] + 100}
    return trace


LAYOUT = {
    "conversions save what the device is ahead of the host": converting(90, steps=2),
    "not more than what the host needs": converting(90, 30, steps=2),
    "their launches where the device waits for the host": converting(90, 80, steps=2),
    "also where it waits for long": converting(90, 700, steps=2),
    "and what is left of a short wait": converting(90, 10, steps=2),
    "the device waits for the host in some steps only": converting_and_waiting(),
    "beside other work they save what they take alone": converting(90).kernel("elementwise_kernel", 0, 30, stream=99),
    "those that a copy launches are frequent copies": converting(0)
    .op("aten::copy_", 2000, 50)
    .kernel(TO_NHWC, 2010, 400, launched=(2001, 5))
    .step(9, 2000, 1000),
    "what is in NHWC already is not advised to be": converting(300, names=(TO_NCHW, TO_NCHW, TO_NHWC)),
    "MIOpen needs a variable too": converting(90, names=(OF_MIOPEN,) * 3),
    "a second of conversions is claimed once": converting(90)
    .op("autograd::engine::evaluate_function: ConvolutionBackward0", 30, 5)
    .kernel("k", 1000, 1, launched=(31, 1)),
}
FIRST_US, LATER_US = 20_000, 10_000  # of the steps of `recorded`


def step_of(trace, number, begin, us, *, work=0):
    """Add a step that launches one kernel after ``work`` us, which ends with the step."""
    trace.step(number, begin, us).op("aten::mm", begin + work, 100)
    return trace.kernel("gemm", begin + work + 60, us - work - 60, launched=(begin + work + 50, 5))


def recorded(stalled_step=0):
    """Return three steps as captures record them: the first begins with 9 ms of the profiler and of CUPTI.

    In ``stalled_step`` one operator takes 8 ms before the first launch, in the first step after these 9 ms.
    """
    trace = Trace().mark("training_profiler.clock 123", -100, 50)
    trace.mark("(profiler)", 0, 500).mark("(profiler)", 600, 8400)
    trace.event("overhead", "Activity Buffer Request", 4000, 2500, tid=0, pid=-1)
    trace.call("cudaStreamIsCapturing", 3990, 5).call("cudaEventQuery", 7000, 5)
    for number, begin, us, work in ((1, 0, FIRST_US, 9000), (2, FIRST_US, LATER_US, 0), (3, 30_000, LATER_US, 0)):
        if number == stalled_step:
            trace.op("aten::sort", begin + work, 8000)
            work += 8000
        step_of(trace, number, begin, us, work=work)
    return trace


def captured_for(us):
    """Return a step of an idle device that begins with so little time of the profiler."""
    return Trace().mark("(profiler)", 0, us).step(1, 0, 1_000_000).op("aten::mm", us, 9).kernel("k", us + 5, 9)


def with_overhead(*begun, name="Activity Buffer Request"):
    """Return a gap of 5 ms that an overhead of 4 ms takes most of; ``begun`` are operators of autograd's thread."""
    trace = Trace().op("aten::mm", 0, 100).kernel("k", 0, 100, launched=(0, 5))
    trace.event("overhead", name, 200, 4000, tid=0, pid=-1)
    for ts in begun:
        trace.op("aten::add", ts, 10, tid=AUTOGRAD)
    return trace.kernel("k", 5100, 10, launched=(5000, 5), tid=AUTOGRAD).op("aten::mm", 5000, 50, tid=AUTOGRAD)


def sampled():
    trace = step_of(Trace().mark("(profiler)", 0, 9000), 1, 0, 11_000, work=10_000)
    trace.op("aten::mul", 9000, 900).step(2, 11_000, 11_000).op("aten::mul", 11_000, 6000)
    trace.kernel("gemm", 17_000, 5000, launched=(16_990, 5))
    for name, ts in (("slow.py:1 in start", 4000), ("train.py:7 in loop", 13_000), ("train.py:7 in loop", 14_000)):
        trace.events.append({"ph": "i", "cat": "training_profiler.line", "name": name, "pid": 7, "tid": 1, "ts": ts})
    return trace


BY_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
RECORDING = {
    "the start of a recording does not fire a rule": recorded(),
    "shares are of the time without the recording": recorded().mark("enumerate(DataLoader)#_Iter", 20_000, 6200),
    "a recording of a moment is not said": captured_for(50),
    "nor one that does not hold up the host": step_of(Trace().op("aten::mm", -50, 20), 1, 0, 1000),
    "a stall after the start of the recording is found": recorded(1),
    "and one of the second step": recorded(2),
    "and one of the last": recorded(3),
    "what precedes the first event of the program is not known": step_of(Trace(), 1, 0, FIRST_US, work=9000),
    "it is the host's where it was recorded before": step_of(
        Trace().op("aten::mm", -50, 20), 1, 0, FIRST_US, work=9000
    ),
    "a section that is open at the begin shows the program at its end": step_of(
        Trace().mark("forward_pass", 0, 9000), 1, 0, FIRST_US, work=9000
    ),
    "a wait for a batch is the program's": step_of(Trace().mark(BY_LOADER, 0, 9000), 1, 0, FIRST_US, work=9000),
    "the longest idle time and the main cause are those of the program": sampled(),
    "a gap in which CUPTI works for itself is the recording": with_overhead(),
    "and not on a thread that it does not hold up": with_overhead(2000),
    "nor what CUDA does without a profiler": with_overhead(name="Lazy Function Loading"),
}


def waiting_first(has_read):
    trace = Trace().step(0, 0, 6100).step(1, 6100, 2940)
    if has_read:
        trace.op("aten::item", 0, 6005).copy("DtoH (Device -> Pageable)", 5995, 3, launched=(10, 5990))
    else:
        trace.call("cudaStreamSynchronize", 10, 6000)
    return trace.op("aten::mm", 6020, 20).kernel("gemm", 6040, 3000, launched=(6030, 5))


def behind(launched_before):
    """Return steps whose device does earlier work for 2.5 ms without records, under a tenth of their time."""
    trace, free = Trace(), 2500
    for number in range(3):
        trace.step(number, 10_000 * number, 10_000)
        for i in range(10):
            at = 10_000 * number + 100 * i
            trace.op("aten::mm", at, 60).kernel("gemm", free, 1000, launched=(at + 30, 20))
            free += 1000
    if launched_before:  # its call is not recorded
        trace.events = [event for event in trace.events if event["name"] != "cudaLaunchKernel" or event["ts"] != 30]
    return trace


def lost_at_the_end(busy_us):
    """Return 200 launches whose last three kernels are not recorded, and a last step that waits for them."""
    lost = frozenset({197, 198, 199})
    trace = simulated(Loop(steps=10, kernels=20, kernel_us=100, host_us=120, loses=lost, is_marked=False))[0]
    return trace.step(0, 0, 24_000).step(1, 24_000, busy_us).call("cudaDeviceSynchronize", 24_010, busy_us - 20)


def starting_late(wait_us):
    return Trace().op("aten::mm", 0, 30_000).kernel("gemm", 20 + wait_us, 40_000, launched=(5, 10))


def whole(**of):
    return simulated(Loop(**of))[0]


def shifted(us):
    """Return a trace with a clock that jumps: later device work is recorded so much earlier or later."""
    trace = whole()
    for event in trace.events:
        if event["cat"] == "kernel" and event["ts"] > 2000:
            event["ts"] += us
    return trace


def behind_by(us):
    """Return a loop with gaps of 8 and of 0.1 ms, whose device has a clock that is so much behind the host's."""
    trace = Trace()
    for step in range(10):
        at = 10_000 * step
        trace.step(step, at, 10_000).mark("enumerate(DataLoader)#_Iter.__next__", at, 8000)
        for i in range(8):
            launch = at + 8000 + 150 * i
            trace.op("aten::mm", launch - 20, 40).kernel("gemm", launch + 5 - us, 50, launched=(launch, 4))
    return trace


def overlapping(us, by="cudaLaunchKernel"):
    """Return a trace in which each kernel begins so much before the one before it ends."""
    trace = Trace().step(1, 0, 10_000)
    for i in range(10):
        trace.kernel("gemm", 100 + 900 * i, 900 + us, launched=(10 + 900 * i, 5), by=by)
    return trace


def with_halves(*halves):
    trace = whole()
    trace.events += [event | {"pid": 7, "tid": 1, "ts": 9e6 + i} for i, event in enumerate(halves)]
    return trace


def captured_launches():
    trace = whole(loses=frozenset(range(10, 20)))
    at = sorted(event["ts"] for event in trace.events if event["args"].get("correlation", 0) >= 1_000_000)
    return trace.call("cudaStreamBeginCapture", at[0] - 1, 0.5).call("cudaStreamEndCapture", at[-1] + 6, 0.5)


def excerpt(section=""):
    """Return a step in which nothing is recorded for seconds, but for a section."""
    trace = Trace().step(1, 0, 13_600_000)
    for at in (*range(0, 20_000, 1000), *range(13_400_000, 13_420_000, 1000)):
        trace.op("aten::mm", at, 800).kernel("gemm", at + 700, 250, launched=(at + 600, 5))
    return trace.mark(section, 20_000, 13_380_000) if section else trace


def numbered(count, apart=lambda i: 100 * i):
    """Return a loop whose operators have numbers of torch, of which most were filtered out."""
    trace = Trace()
    for step in range(2):
        trace.step(step, 100_000 * step, 99_000)
    for i in range(count):
        at = 200_000 // count * i + 10
        trace.op("aten::mm", at, 20, **{"External id": 1 + apart(i)})
        trace.kernel("gemm", at + 20, 5, launched=(at + 10, 5))
    return trace


def short_gaps():
    trace = Trace().step(1, 0, 1000)
    for i in range(40):
        trace.op("aten::add", 25 * i, 20).kernel("k", 25 * i + 5, 5, launched=(25 * i + 1, 2))
    return trace


def late_start(wait_us, end=20_000):
    """Return a trace in which work that was launched begins so much later, while nothing else runs."""
    trace = Trace().op("aten::mm", 0, 20).kernel("k", 5, 10, launched=(1, 2)).op("aten::copy_", 30, end - 30)
    return trace.kernel("gemm", 40 + wait_us, end - 40 - wait_us, launched=(32, 4))


KERNEL_HALF = {"ph": "B", "cat": "kernel", "name": "k"}
DOUBTS = {
    "a host that first waits for earlier work shows that there is some": waiting_first(has_read=False),
    "and one that reads it": waiting_first(has_read=True),
    "a device that does earlier work for a short time is not idle": behind(launched_before=False),
    "nor where its first call is not recorded": behind(launched_before=True),
    "the last kernels that are lost may have been long": lost_at_the_end(8000),
    "after short ones idle time has no known cause": lost_at_the_end(1500),
    "a wait of 1.5 ms for work without records is named on the path": starting_late(1500),
    "one of 0.9 ms is a launch delay": starting_late(900),
    "graphs without kernels": whole().call("cudaGraphLaunch", 100, 5, correlation=5_000_000),
    "a kernel that is longer than a step": whole().kernel("k", 100, 10_000_000),
    "work before its launch": shifted(-3000),
    "a clock that is behind is corrected": behind_by(200),
    "also by milliseconds": behind_by(3000),
    "work at its launch is as it should be": behind_by(5),
    "kernels that overlap on one stream are too long": overlapping(400),
    "replays of graphs may have several at a time": overlapping(400, "cudaGraphLaunch"),
    "a kernel may begin a little before the end of another one": overlapping(90),
    "a clock that jumps": whole().op("aten::mm", 3_600_000_000, 20),
    "seconds that only a step contains": excerpt(),
    "a section shows what they were": excerpt("save_checkpoint"),
    "a step that ends long after the recording": Trace()
    .mark("ProfilerStep#1", 0, 13_336_000, tid=3)
    .op("aten::mm", 10, 1300)
    .kernel("k", 1200, 2, launched=(1100, 96)),
    "operators that were left out of the file": numbered(40),
    "all operators are in it": numbered(40, lambda i: i),
    "other events take numbers, too": numbered(40, lambda i: 5 * i),
    "few are left out": numbered(40, lambda i: 20 * i),
    "these number no operators": numbered(40, lambda i: 2_654_435_761 * (i + 1) % 2**31),
    "these are not numbers": numbered(40, lambda i: -1),
    "lost halves of device work": with_halves({**KERNEL_HALF, "ph": "E"}, KERNEL_HALF, KERNEL_HALF),
    "a host event cut off by the recording": with_halves({"ph": "B", "cat": "cpu_op", "name": "a"}),
    "a buffer that was full": whole(loses=frozenset(range(30, 40))),
    "launches into a graph capture are not lost": captured_launches(),
    "Python before the first work is not the loading of a kernel": Trace()
    .op("aten::mm", -9, 8)
    .step(1, 0, 9000)
    .kernel("k", 7000, 10, launched=(6990, 5))
    .op("aten::mm", 6990, 8),
    "idle time in short gaps is named as such": short_gaps(),
    "work that waits for nothing recorded": late_start(6000),
    "for under a tenth of the time": late_start(1900),
    "it may wait for another rank": late_start(6000).kernel("ncclDevKernel_AllReduce_RING_LL", 16, 10, stream=20),
    "a device is not idle while a graph is captured": Trace()
    .kernel("k", 0, 10, launched=(-5, 2))
    .op("aten::mm", 20, 9000)
    .call("cudaStreamBeginCapture", 20, 1)
    .call("cudaStreamEndCapture", 9000, 10)
    .kernel("k", 9020, 10),
}


def full_queue():
    """Return 1,200 launches of 1 us of kernels of 10 us: from the thousandth on, each waits for one to end."""
    trace, now, free, ends = Trace(), 0, 3, []
    for number in range(1200):
        room = ends[number - 1001] if number > 1000 else 0
        end = max(now + 1, room + 0.5)
        at = max(now + 0.5, free)
        trace.kernel(KERNEL, at, 10, launched=(now, end - now))
        free = at + 10
        ends.append(free)
        now = end + 0.5
    return trace.step(0, 0, now)


def with_earlier(us):
    trace = Trace().op("aten::mm", 0, 5000).call("cudaLaunchKernel", 4000, 5, correlation=20).step(0, 0, 6000)
    return trace.kernel(KERNEL, 5000, 5000, correlation=20).kernel(KERNEL, 50, us, correlation=7)


def back_to_back(overlap_us):
    """Ten kernels in a row on one stream, launched long before; each begins a little before the last one ends."""
    trace = Trace().step(1, 0, 10_300)
    for i in range(10):
        trace.kernel("gemm", 200 + 1000 * i, 1000 + overlap_us, launched=(10 + 5 * i, 4))
    return trace.call("cudaDeviceSynchronize", 100, 10_150)


def copied_late(us):
    trace = Trace().step(1, 0, 3000).op("aten::copy_", 5, 1000).call("cudaMemcpyAsync", 10, 990, correlation=1)
    trace.copy("HtoD (Pageable -> Device)", 20, 980 + us, correlation=1)
    return trace.op("aten::mm", 2000, 50).kernel("gemm", 2100, 500, launched=(2010, 5))


def contended(tail_us, **long):
    """Return a trace with a kernel that is launched at once and begins as a long one of another stream ends."""
    trace = Trace().step(1, 0, 4425).op("aten::mm", 0, 100)
    trace.kernel("long", 60, 4000 + tail_us, launched=(50, 5), **long)
    trace.kernel("late", 4060, 50, launched=(70, 5), stream=20)
    trace.kernel("gemm", 4110, 300, launched=(80, 5), stream=20)
    return trace.call("cudaStreamSynchronize", 200, 4225)


PATH = {
    "a launch into a full queue waits for the device": full_queue(),
    "a trace of the host alone has a path": Trace()
    .op("aten::mm", 0, 60)
    .op(MM_BACKWARD, 63, 30, tid=AUTOGRAD)
    .op("aten::add", 95, 5)
    .step(0, 0, 100),
    "a little earlier work belongs to the path": with_earlier(400),
    "after much of it the path begins with the work of the steps": with_earlier(4050),
    "all work can be of before": Trace()
    .op("aten::mm", 0, 5000)
    .kernel(KERNEL, 500, 5000, launched=(10, 5))
    .step(0, 1000, 4000),
    "a trace without a host has no path": Trace().kernel(KERNEL, 0, 5),
    "nor one whose steps are apart": Trace().op("a", 0, 9).step(0, 0, 10).op("a", 90, 9).step(1, 90, 10),
    "kernels of a stream follow each other": back_to_back(0),
    "where they overlap slightly": back_to_back(0.2),
    "and a little more": back_to_back(15),
    "a blocking copy is awaited": copied_late(-5),
    "also where it ends a moment after its call": copied_late(30),
    "time without a name is shown among the longest": Trace()
    .step(1, 0, 5000)
    .op("aten::mm", 4000, 50)
    .kernel("gemm", 4100, 500, launched=(4010, 5)),
    "an extension that waits without an operator is not called Python": Trace()
    .step(1, 0, 5000)
    .mark("dispatch(F)", 0, 4500)
    .kernel("void dpsk::ep::internode::notify_dispatch<8>()", 20, 4000, launched=(10, 5))
    .op("aten::empty", 4100, 300),
    "an operator is not charged with the allocations within it": Trace()
    .step(1, 0, 5000)
    .op("aten::addmm", 0, 4000)
    .call("cudaMalloc", 100, 3000)
    .kernel("gemm", 4010, 100, launched=(3900, 50)),
    "a kernel waits for room on the device": contended(1),
    "for one that ends with it": contended(10),
    "for one that ends after it": contended(55),
    "a copy leaves the device to kernels": contended(55, cat="gpu_memcpy"),
    "a change that rounds to nothing has no sign": Trace()
    .step(1, 0, 1_000_000)
    .op("aten::mm", 0, 100)
    .op("aten::sort", 100, 999_800),
}
# For each subject what of a trace is looked at, with views by their names after a colon, and the traces.
SUBJECTS = {
    "operators": (
        "gpu_util_in_steps_pct step_parts_ns devices kernels_shorter_than_launch kernels_with_launch top_kernels "
        "gpu_events_without_launch memcpy host_communication communication memory operators by_shape phases doubts",
        OPERATORS,
    ),
    "gaps": ("largest_gaps_ms gap_causes_ms gaps first_runs follows_read said doubts", GAPS),
    "code": ("code gaps where said :code", CODE),
    "roofline": ("roofline :roofline", ROOFLINE),
    "bandwidth": ("bus_bandwidth :communication", BANDWIDTH),
    "checklist": ("checklist phases", CHECKLIST),
    "parallelism": ("parallelism said", PARALLELISM),
    "layout": ("said :recommendations", LAYOUT),
    "recording": (
        "idle_at_ends gaps gap_causes_ms recording_ms critical_path checklist said :overview :trace :critical-path",
        RECORDING,
    ),
    "path": ("critical_path :critical-path", PATH),
    "doubts": ("doubts idle_at_ends gap_causes_ms not_recorded_ms kinds said :overview", DOUBTS),
}


def known(value):
    """Return a value without what is unknown or empty in it."""
    if isinstance(value, dict):
        return {key: known(part) for key, part in value.items() if part not in (None, [], {}, "", False)}
    return [known(part) for part in value] if isinstance(value, list) else value


def figures(claim, keys, found):
    data = trace_data(found) | {
        "by_shape": [[row.name, row.shapes, row.calls, row.host_self_ns, row.host_total_ns, row.device_total_ns]
                     for row in found.operators_by_shape],
        "phases": found.phases.times_ns,
        "where": [place.where for place in found.gaps],
        "first_runs": [place.stall_by for place in found.gaps if place.is_first_run],
        "follows_read": [place.follows_read for place in found.gaps],
    }  # fmt: skip
    data["said"] = [f"{row['finding']} ({row['saving_ms']} ms) -> {row['fix']}" for row in data["recommendations"]]
    data["kinds"] = data["critical_path"].get("kinds_ms")
    for view in (key for key in keys.split() if key.startswith(":")):
        data[view] = render_view(view[1:], found, "host_self").splitlines()
        assert max(map(len, data[view])) <= 80
    lines = [f"{key}: {json.dumps(known(data[key]))}" for key in keys.split() if key[0] != ":" and data[key]]
    lines += [line for key in keys.split() if key[0] == ":" for line in data[key]]
    return "\n".join([f"##### {claim}", *lines])


@pytest.mark.parametrize("subject", SUBJECTS)
def test_figures_of_each_trace_are_as_before(subject, tmp_path):
    keys, scenarios = SUBJECTS[subject]
    texts = [figures(claim, keys, trace.analysed(tmp_path)) for claim, trace in scenarios.items()]
    path = Path(__file__).parents[1] / "golden" / "trace_figures" / f"{subject}.txt"
    assert_golden(path, "\n\n".join(texts) + "\n")
