"""FLOPs of single torch operations, by torch's own formulas; also for some operations that have none there."""

import importlib
import logging
import os
import random
import re
import sys
import time
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from types import CodeType, FrameType
from typing import Any, Final

from training_profiler.base.backends import CUDA
from training_profiler.base.peaks import cpu_name, measured_peak
from training_profiler.base.units import NS_PER_S
from training_profiler.inspections.inspection import dispatch_mode
from training_profiler.instrumentation.loop_detection.modules import plain_classes
from training_profiler.model.program import ForwardFacts, LongOperators, NanChecks, OutsideModules

# Operations of other namespaces may do anything.
KNOWN_NAMESPACES: Final = ("aten", "prim", "prims", "c10d", "_c10d_functional", "profiler", "inductor")
NO_FORMULA: Final = (
    *("_cudnn_rnn", "miopen_rnn", "_grouped_mm", "_scaled_grouped_mm"),
    *("addbmm", "_addmm_activation"),
    # Inference mode does not decompose these.
    *("linear", "matmul", "einsum", "conv1d", "conv2d", "conv3d"),
)
ATTENTION: Final = "scaled_dot_product_"  # the kernels with formulas differ between torch versions
CPU_LSTM: Final = "mkldnn_rnn_layer"  # one layer in one direction, as nn.LSTM runs it on the CPU; none in torch, either
CPU_ATTENTION: Final = "_scaled_dot_product_flash_attention_for_cpu"  # has no formula in torch
RECURRENT_LAYERS: Final = os.path.join("torch", "nn", "modules", "rnn.py")
LONG: Final = 8.0  # x the median of all operators
MANY: Final = 100  # operators of a forward pass; from there on it is of interest which line starts them
COUNTING_NS: Final = 20_000  # what counting adds to an operation, about
MOST_COUNTING_NS: Final = 300_000_000  # for operations that are shorter
READ_EACH: Final = 7  # of those, on average: reading a line takes about 10 us
# Operators with which anomaly detection looks for NaN in a gradient; nothing else of torch calls the second.
NAN_CHECKS: Final = ("aten.isnan.default", "aten._is_any_true.default", "aten._local_scalar_dense.default")
# Names of nodes of autograd's graph: a parameter's, and those of what a penalty does to each parameter. Functional
# layers take parameters by others, such as products and convolutions.
OF_PENALTY: Final = re.compile(r"(Pow|Abs|Sum|Mul|Sub|Norm|LinalgVectorNorm|Square|View|UnsafeView)Backward")


def _recurrent_layer(code: CodeType) -> str:
    """Return the class of torch's recurrent layer whose ``forward`` has this code; "" for all other code."""
    layer, _, method = code.co_qualname.rpartition(".")
    is_layer = method == "forward" and not layer.endswith("Cell")
    return layer if is_layer and code.co_filename.endswith(RECURRENT_LAYERS) else ""


class Operations:
    """Adds up FLOPs by pass, data type, device and attention kernel; never raises.

    Pairs are of forward and of backward passes.
    """

    def __init__(self, torch: Any, place_of: Callable[[FrameType | None], str]) -> None:
        self.flops = [0, 0]
        self.is_backward = False
        self.is_over = False
        self.why_not: str | None = None
        self._torch = torch
        self._place_of = place_of
        self._spent_ns = 0  # in operations
        self._times_ns = array("q"), array("q")
        self._kinds: tuple[list[Any], list[Any]] = [], []
        self.graph = _GraphReader(torch)
        self._places: Counter[tuple[str, str]] = Counter()
        self._read_at = MANY + 1  # operations of forward passes
        self._random = random.Random(0)  # for an equal distance, all of a loop's may be the same operation
        self._plain = plain_classes(torch)
        self._by_kind: Counter[tuple[str, Any]] = Counter()  # (data type, device) -> FLOPs
        self._attention: Counter[str] = Counter()  # kernel -> FLOPs
        self._formulas = _formulas(torch.ops.aten)
        self.without_flops: set[Any] = set()  # nine of ten operations; looking them up here keeps them cheap

    def count_operator(self, spent_ns: int, kind: Any = None) -> None:
        """Count an operation that has run for so long; of one ``kind`` are those that have as much to do."""
        if self.is_over:
            return
        self._spent_ns += spent_ns
        self._times_ns[self.is_backward].append(spent_ns)
        self._kinds[self.is_backward].append(kind)
        if self.is_backward:
            self.graph.ran(spent_ns)
        elif len(self._times_ns[0]) >= self._read_at:
            self._read_at += self._random.randrange(1, 2 * READ_EACH)
            self._add_place(sys._getframe(1).f_back)

    def _add_place(self, frame: FrameType | None) -> None:
        if frame is not None:  # a thread of autograd has none of Python
            self._places[self._place_of(frame), _recurrent_layer(frame.f_code)] += 1

    @property
    def operators(self) -> int:
        """The operations so far."""
        return len(self._times_ns[0]) + len(self._times_ns[1])

    @property
    def are_costly(self) -> bool:
        """Whether counting takes long, and longer than the operations, as in a step with an agent's whole episode."""
        return self.operators * COUNTING_NS > max(MOST_COUNTING_NS, self._spent_ns)

    def facts(self, calls_ns: int = 0) -> dict[str, Any]:
        """Return the facts of the program that the operations show; forward passes have taken ``calls_ns``."""
        forward_s, backward_s = (sum(times) / NS_PER_S for times in self._times_ns)
        names = [kind and str(kind[0]) for kind in self._kinds[1]]
        checks_ns = [ns for ns, name in zip(self._times_ns[1], names, strict=True) if name in NAN_CHECKS]
        checks = NanChecks(len(checks_ns), sum(checks_ns) / NS_PER_S, backward_s)
        long_forward, long_backward = self._long()
        graph = self.graph
        return {
            "operators": self.operators,
            "forward": ForwardFacts(len(self._times_ns[0]), forward_s, calls_ns / NS_PER_S, *self._most_start_at()),
            "long_forward": long_forward,
            "long_backward": long_backward,
            "outside": OutsideModules(graph.operators, graph.ns / NS_PER_S, backward_s, len(graph.of_parameters)),
            "nan_checks": checks if NAN_CHECKS[1] in names else NanChecks(),
        }

    def _most_start_at(self) -> tuple[str, str]:
        """Return the line and torch's layer that start half of all operations of forward passes, or the layer alone."""
        layers: Counter[tuple[str, str]] = Counter()
        for (_, layer), count in self._places.items():
            layers["", layer] += count
        most = self._places.most_common(1) + layers.most_common(1)
        return next((where for where, count in most if 2 * count >= self._places.total()), ("", ""))

    def _long(self) -> tuple[LongOperators, LongOperators]:
        """Return by pass the operations that took much longer than half of all; none that are usually short."""
        least_ns = LONG * median([*self._times_ns[0], *self._times_ns[1]]) if self.operators else 0.0

        def of_pass(times_ns: Sequence[int], kinds: Sequence[Any]) -> LongOperators:
            by_kind: dict[Any, list[int]] = defaultdict(list)
            for spent_ns, kind in zip(times_ns, kinds, strict=True):
                by_kind[kind].append(spent_ns)
            usually_long = [
                its_ns
                for kind, its_ns in by_kind.items()
                if kind is None or len(its_ns) < 8 or median(its_ns) > least_ns  # half of them show what is usual
            ]
            long_ns = [spent_ns for its_ns in usually_long for spent_ns in its_ns if spent_ns > least_ns]
            return LongOperators(len(long_ns), sum(long_ns) / NS_PER_S, sum(times_ns) / NS_PER_S)

        return of_pass(self._times_ns[0], self._kinds[0]), of_pass(self._times_ns[1], self._kinds[1])

    def add(self, operation: Any, subclasses: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add an executed operation."""
        try:
            if not self.is_over:
                self._add(operation, subclasses, args, kwargs, out)
        except Exception as error:
            self.why_not = f"{operation}: {type(error).__name__}: {error}"

    def _add(self, operation: Any, subclasses: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = getattr(operation, "_overloadpacket", operation)
        formula = self._formulas.get(packet)
        others = [kind for kind in subclasses if kind not in self._plain]
        if others:
            self.why_not = f"it uses tensors of class {others[0].__name__}"
        elif formula is not None:
            flops = int(formula(*args, **kwargs, out_val=out))
            self.flops[self.is_backward] += flops
            self._by_kind[self._kind(packet, args, out)] += flops
            if ATTENTION in packet.__name__ and not self.is_backward:
                self._attention[packet.__name__.strip("_").removeprefix(ATTENTION)] += flops
        elif (
            getattr(operation, "namespace", "") not in KNOWN_NAMESPACES
            or packet.__name__ in NO_FORMULA
            or ATTENTION in packet.__name__
        ):
            self.why_not = f"{packet} has no formula"
        else:
            self.without_flops.add(operation)

    def _kind(self, packet: Any, args: Any, out: Any) -> tuple[str, Any]:
        tensors = [value for value in (*args, out) if isinstance(value, self._torch.Tensor)]
        tensor = tensors[0] if tensors else next(value for value in out if isinstance(value, self._torch.Tensor))
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "float32" and tensor.device.type == CUDA.kind:
            dtype = _float32_on_cuda(self._torch.backends, "convolution" in packet.__name__)
        return dtype, tensor.device

    def where(self) -> tuple[str, str, str, float | None]:
        """Return type and attention kernel of most FLOPs, the only accelerator, and its or the CPU's measured peak."""
        dtypes: Counter[str] = Counter()
        for (dtype, _), flops in self._by_kind.items():
            dtypes[dtype] += flops
        devices = {device for _, device in self._by_kind}
        device = next(iter(devices))
        is_named = len(devices) == 1 and device.type == CUDA.kind
        name = str(self._torch.cuda.get_device_name(device)) if is_named else ""
        attention = self._attention.most_common(1)[0][0] if self._attention else ""
        dtype = dtypes.most_common(1)[0][0]
        known_as = cpu_name(self._torch.get_num_threads()) if {one.type for one in devices} == {"cpu"} else name
        return dtype, name, attention, measured_peak(known_as, dtype) if known_as else None

    @property
    def of_forward(self) -> tuple[int, int]:
        """The FLOPs of forward passes, and those of attention among them."""
        return self.flops[0], self._attention.total()


class _GraphReader:
    """Finds backward operations of what no module computed, by the order in which nodes were made."""

    def __init__(self, torch: Any) -> None:
        self.operators = self.ns = 0  # of these
        self._node = getattr(torch._C, "_current_autograd_node", None)
        self._number = getattr(torch._C._autograd, "_get_sequence_nr", None)  # of the next node of this thread
        self._begins, self._ends = array("q"), array("q")  # numbers of the nodes of forward passes in modules
        self._backward_from = 0  # nodes from here on were made by the backward pass itself
        self.of_parameters: set[int] = set()  # nodes that take a parameter

    def begins(self, is_backward: bool) -> None:
        """Note the begin of a counted forward pass, or of a backward pass."""
        if self._number is not None and is_backward:
            self._backward_from = self._number()
        elif self._number is not None:
            self._begins.append(self._number())

    def ends(self, is_backward: bool) -> None:
        """Note its end."""
        if self._number is not None and not is_backward and len(self._ends) < len(self._begins):
            self._ends.append(self._number())

    def ran(self, spent_ns: int) -> None:
        """Note an operation of a backward pass; never raises."""
        try:
            node = None if self._node is None else self._node()
            if node is not None:
                self._ran(node, node._sequence_nr(), spent_ns)
        except Exception:
            self._node = None

    def _ran(self, node: Any, number: int, spent_ns: int) -> None:
        if number >= self._backward_from:
            return
        at = bisect_right(self._begins, number) - 1
        if at >= 0 and (at >= len(self._ends) or number < self._ends[at]):
            return
        self.operators += 1
        self.ns += spent_ns
        if number not in self.of_parameters and OF_PENALTY.match(node.name()):
            inputs = (each for each, _ in node.next_functions if each is not None)
            if any(each.name().endswith("AccumulateGrad") for each in inputs):
                self.of_parameters.add(number)


def _float32_on_cuda(backends: Any, is_convolution: bool) -> str:
    """Return in which precision float32 is computed: "float32", "tf32", or "float32 or tf32" if unknown."""
    rules = backends.cudnn if is_convolution else backends.cuda.matmul
    try:
        # torch 2.9 has two settings, and reading one raises if the other was set. Older versions have allow_tf32 only.
        precision = getattr(getattr(rules, "conv", rules), "fp32_precision", "none")
        has_tf32 = bool(rules.allow_tf32) if precision == "none" else precision == "tf32"
    except Exception:
        return "float32 or tf32"
    return "tf32" if has_tf32 else "float32"


def _flop_counter() -> Any:
    """Import torch's formulas without its warning that Triton is missing, which the program would not cause."""
    log = logging.getLogger("torch.utils.flop_counter")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        return importlib.import_module(log.name)
    finally:
        log.setLevel(before)


def _formulas(aten: Any) -> dict[Any, Callable[..., int]]:
    """Return torch's formulas, and ours of what has none there, by operation."""
    counter = _flop_counter()

    def lstm(rows: Any, of_input: Any, of_state: Any, *args: Any, **kwargs: Any) -> int:
        """Each row of each time step is multiplied by both weights; the backward pass multiplies twice as often."""
        return int(2 * (rows.numel() // rows.shape[-1]) * (of_input.numel() + of_state.numel()))

    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
        return int(counter.sdpa_flop_count(query.shape, key.shape, value.shape))

    def attention_backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
        return int(counter.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))

    ours: dict[str, Callable[..., int]] = {
        CPU_LSTM: lstm,
        f"{CPU_LSTM}_backward": lambda *args, **kwargs: 2 * lstm(*args),
        CPU_ATTENTION: attention,
        f"{CPU_ATTENTION}_backward": attention_backward,
    }
    return {getattr(aten, name): ours[name] for name in ours if hasattr(aten, name)} | dict(counter.flop_registry)


def counting_mode(counts: Operations) -> Any:
    """Return a dispatch mode that runs each operation unchanged and adds it to ``counts``."""
    without_flops, clock, tensor = counts.without_flops, time.perf_counter_ns, sys.modules["torch"].Tensor

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began_ns = clock()
        out = func(*args, **kwargs) if kwargs else func(*args)
        spent_ns = clock() - began_ns
        counts.count_operator(spent_ns, (func, out.numel() if isinstance(out, tensor) else 0))
        if func in without_flops:
            return out
        counts.add(func, types, args, kwargs or {}, out)
        return out

    return dispatch_mode("FlopMode", dispatch)
