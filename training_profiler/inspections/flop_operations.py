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

from training_profiler.base.units import NS_PER_S
from training_profiler.inspections.flop_eligibility import plain_classes
from training_profiler.snapshot.program import LongOperators, NanChecks, OutsideModules
from training_profiler.tables.backends import CUDA

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
USUAL_FROM: Final = 8  # operators of a kind, of which half show what is usual
MANY: Final = 500  # operators of a forward pass; from there on it is of interest which line starts them
COUNTING_NS: Final = 20_000  # what counting adds to an operation, about
MOST_COUNTING_NS: Final = 300_000_000  # for operations that are shorter
READ_EACH: Final = 7  # of those, on average: reading a line takes about 10 us
# Operators with which anomaly detection looks for NaN in a gradient; nothing else of torch calls the second.
NAN_CHECKS: Final = ("aten.isnan.default", "aten._is_any_true.default", "aten._local_scalar_dense.default")
# Names of nodes of autograd's graph: a parameter's, and those of what a penalty does to each parameter. Functional
# layers take parameters by others, such as products and convolutions.
OF_PARAMETER: Final = "AccumulateGrad"
OF_PENALTY: Final = re.compile(r"(Pow|Abs|Sum|Mul|Sub|Norm|LinalgVectorNorm|Square|View|UnsafeView)Backward")


def _recurrent_layer(code: CodeType) -> str:
    """Return the class of torch's recurrent layer whose ``forward`` has this code; "" for all other code."""
    layer, _, method = code.co_qualname.rpartition(".")
    is_layer = method == "forward" and not layer.endswith("Cell")
    return layer if is_layer and code.co_filename.endswith(RECURRENT_LAYERS) else ""


def _long_ns(times_ns: Sequence[int], kinds: Sequence[Any], least_ns: float) -> list[int]:
    """Return the times above ``least_ns``, but for those of a kind that usually takes less."""
    by_kind: dict[Any, list[int]] = defaultdict(list)
    for spent_ns, kind in zip(times_ns, kinds, strict=True):
        by_kind[kind].append(spent_ns)
    return [
        spent_ns
        for kind, its_ns in by_kind.items()
        if kind is None or len(its_ns) < USUAL_FROM or median(its_ns) > least_ns
        for spent_ns in its_ns
        if spent_ns > least_ns
    ]


class Operations:
    """Adds up FLOPs by pass, data type, device and attention kernel; never raises."""

    def __init__(self, torch: Any, place_of: Callable[[FrameType | None], str]) -> None:
        self.forward = 0
        self.backward = 0
        self.is_backward = False
        self.is_over = False
        self.why_not: str | None = None
        self.spent_ns = 0  # in operations
        self._torch = torch
        self._place_of = place_of
        self._forward_times_ns, self._backward_times_ns = array("q"), array("q")
        self._forward_kinds: list[Any] = []
        self._backward_kinds: list[Any] = []
        self._graph = _GraphReader(torch)
        self._places: Counter[tuple[str, str]] = Counter()
        self._read_at = MANY + 1  # operations of forward passes
        self._random = random.Random(0)  # for an equal distance, all of a loop's may be the same operation
        self._plain = plain_classes(torch)
        self._by_kind: Counter[tuple[str, Any]] = Counter()  # (data type, device) -> FLOPs
        self._attention: Counter[str] = Counter()  # kernel -> FLOPs
        counter = _flop_counter()
        self._formulas: dict[Any, Callable[..., int]] = dict(counter.flop_registry)
        self._add_attention_on_cpu(counter)
        self._add_lstm_on_cpu()
        self.without_flops: set[Any] = set()  # nine of ten operations; looking them up here keeps them cheap

    def _add_attention_on_cpu(self, counter: Any) -> None:
        aten = self._torch.ops.aten

        def forward(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
            return int(counter.sdpa_flop_count(query.shape, key.shape, value.shape))

        def backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
            return int(counter.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))

        for name, formula in ((CPU_ATTENTION, forward), (CPU_ATTENTION + "_backward", backward)):
            if hasattr(aten, name):
                self._formulas.setdefault(getattr(aten, name), formula)

    def _add_lstm_on_cpu(self) -> None:
        """Each row of each time step is multiplied by both weights; the backward pass multiplies twice as often."""
        aten = self._torch.ops.aten

        def forward(rows: Any, of_input: Any, of_state: Any, *args: Any, **kwargs: Any) -> int:
            return int(2 * (rows.numel() // rows.shape[-1]) * (of_input.numel() + of_state.numel()))

        def backward(*args: Any, **kwargs: Any) -> int:
            return 2 * forward(*args)

        for name, formula in ((CPU_LSTM, forward), (CPU_LSTM + "_backward", backward)):
            if hasattr(aten, name):
                self._formulas.setdefault(getattr(aten, name), formula)

    def count_operator(self, spent_ns: int, kind: Any = None) -> None:
        """Count an operation that has run for so long; of one ``kind`` are those that have as much to do."""
        if self.is_over:
            return
        self.spent_ns += spent_ns
        if self.is_backward:
            self._backward_times_ns.append(spent_ns)
            self._backward_kinds.append(kind)
            self._graph.ran(spent_ns)
            return
        self._forward_times_ns.append(spent_ns)
        self._forward_kinds.append(kind)
        if self.in_forward >= self._read_at:
            self._read_at += self._random.randrange(1, 2 * READ_EACH)
            self._add_place(sys._getframe(1).f_back)

    def call_begins(self) -> None:
        """Note the begin of a counted forward pass, or of a backward pass."""
        if self.is_backward:
            self._graph.backward_begins()
        else:
            self._graph.call_begins()

    def call_ends(self) -> None:
        """Note its end."""
        if not self.is_backward:
            self._graph.call_ends()

    @property
    def outside(self) -> OutsideModules:
        """What backward passes computed for operations that no module did; zeros where that is unknown."""
        return self._graph.outside(sum(self._backward_times_ns))

    @property
    def nan_checks(self) -> NanChecks:
        """What anomaly detection computed in backward passes."""
        names = [kind and str(kind[0]) for kind in self._backward_kinds]
        if NAN_CHECKS[1] not in names:
            return NanChecks()
        checks_ns = [ns for ns, name in zip(self._backward_times_ns, names, strict=True) if name in NAN_CHECKS]
        return NanChecks(len(checks_ns), sum(checks_ns) / NS_PER_S, sum(self._backward_times_ns) / NS_PER_S)

    def _add_place(self, frame: FrameType | None) -> None:
        if frame is not None:  # a thread of autograd has none of Python
            self._places[self._place_of(frame), _recurrent_layer(frame.f_code)] += 1

    @property
    def operators(self) -> int:
        """The operations so far."""
        return self.in_forward + len(self._backward_times_ns)

    @property
    def are_costly(self) -> bool:
        """Whether counting takes long, and longer than the operations, as in a step with an agent's whole episode."""
        return self.operators * COUNTING_NS > max(MOST_COUNTING_NS, self.spent_ns)

    @property
    def in_forward(self) -> int:
        """Those of forward passes."""
        return len(self._forward_times_ns)

    @property
    def forward_ns(self) -> int:
        """The time in operations of forward passes."""
        return sum(self._forward_times_ns)

    @property
    def most_start_at(self) -> tuple[str, str]:
        """The user's line that starts most operations of forward passes, and torch's layer.

        "" where they are few, and where no line, or no layer of a kind, starts half of them.
        """
        layers: Counter[str] = Counter()
        for (_, layer), count in self._places.items():
            layers[layer] += count
        for (place, layer), count in self._places.most_common(1):
            if 2 * count >= self._places.total():
                return place, layer
        for layer, count in layers.most_common(1):
            if 2 * count >= self._places.total():
                return "", layer
        return "", ""

    def long(self) -> tuple[LongOperators, LongOperators]:
        """Return the operations that took much longer than half of all did: of forward and of backward passes.

        One that is usually short was delayed, by another program or a collection, and is left out.
        """
        passes = self._forward_times_ns, self._backward_times_ns
        least_ns = LONG * median([*passes[0], *passes[1]]) if self.operators else 0.0
        kinds = self._forward_kinds, self._backward_kinds
        forward, backward = (_long_ns(*of_pass, least_ns) for of_pass in zip(passes, kinds, strict=True))
        return (
            LongOperators(len(forward), sum(forward) / NS_PER_S, sum(passes[0]) / NS_PER_S),
            LongOperators(len(backward), sum(backward) / NS_PER_S, sum(passes[1]) / NS_PER_S),
        )

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
            if self.is_backward:
                self.backward += flops
            else:
                self.forward += flops
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

    def where(self) -> tuple[str, str, str]:
        """Return the data type and the attention kernel of most FLOPs, and the accelerator if only one was used."""
        dtypes: Counter[str] = Counter()
        for (dtype, _), flops in self._by_kind.items():
            dtypes[dtype] += flops
        devices = {device for _, device in self._by_kind}
        device = next(iter(devices))
        is_named = len(devices) == 1 and device.type == CUDA.kind
        name = str(self._torch.cuda.get_device_name(device)) if is_named else ""
        attention = self._attention.most_common(1)[0][0] if self._attention else ""
        return dtypes.most_common(1)[0][0], name, attention


class _GraphReader:
    """Finds backward operations of what no module computed, by the order in which nodes were made."""

    def __init__(self, torch: Any) -> None:
        self._node = getattr(torch._C, "_current_autograd_node", None)
        self._number = getattr(torch._C._autograd, "_get_sequence_nr", None)  # of the next node of this thread
        self._begins, self._ends = array("q"), array("q")  # numbers of the nodes of forward passes in modules
        self._backward_from = 0  # nodes from here on were made by the backward pass itself
        self._operators = self._ns = 0
        self._of_parameters: set[int] = set()  # nodes that take a parameter

    def call_begins(self) -> None:
        if self._number is not None:
            self._begins.append(self._number())

    def call_ends(self) -> None:
        if self._number is not None and len(self._ends) < len(self._begins):
            self._ends.append(self._number())

    def backward_begins(self) -> None:
        self._backward_from = 0 if self._number is None else self._number()

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
        self._operators += 1
        self._ns += spent_ns
        if number not in self._of_parameters and OF_PENALTY.match(node.name()):
            inputs = (each for each, _ in node.next_functions if each is not None)
            if any(each.name().endswith(OF_PARAMETER) for each in inputs):
                self._of_parameters.add(number)

    def outside(self, all_ns: int) -> OutsideModules:
        return OutsideModules(self._operators, self._ns / NS_PER_S, all_ns / NS_PER_S, len(self._of_parameters))


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


def counting_mode(counts: Operations) -> Any:
    """Return a dispatch mode that runs each operation unchanged and adds it to ``counts``."""
    base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
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

    members = {
        "__torch_dispatch__": dispatch,
        "supports_higher_order_operators": True,
        # Without it torch would import its compiler, which takes seconds.
        "_should_skip_dynamo": classmethod(lambda _: False),
    }
    return type("FlopMode", (base,), members)()
