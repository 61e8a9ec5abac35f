"""Counts the FLOPs of one early step: forward passes with gradient and backward passes, by torch's own formulas.

While they are counted every operation of torch passes through Python, so it is done in one step alone; and not at all
where something takes part that this might disturb.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from training_profiler.record.flops import StepFlops

if TYPE_CHECKING:
    from training_profiler.instrument.inference import Inference
    from training_profiler.instrument.watch import Watch

FIRST_STEP: Final = 1  # so many steps are complete when the one begins of which FLOPs are counted, at the earliest
COUNTED_BY: Final = 12  # and so many when it is given up
# The backward pass takes twice the forward pass, with a recomputation three times. Where it takes more, much of the
# forward pass was not in any module, and was not seen.
MOST_BACKWARD: Final = 4
# Of operations from elsewhere nothing is known, and of these there is no formula.
KNOWN_NAMESPACES: Final = ("aten", "prim", "prims", "c10d", "_c10d_functional", "profiler", "inductor")
NO_FORMULA: Final = (
    *("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer", "_grouped_mm", "_scaled_grouped_mm"),
    # In inference mode these come undivided.
    *("linear", "matmul", "einsum", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"),
)
ON_CPU: Final = "_scaled_dot_product_flash_attention_for_cpu"  # which has none in torch's table either


class Flops:
    """Decides which step it is, and hands the result over in ``counted``."""

    def __init__(self, watch: "Watch") -> None:
        self.counted: StepFlops | None = None
        self.why_not: str | None = None
        self._watch = watch
        self._counting: Counting | None = None

    def step_ended(self, steps: int) -> None:
        """Note that so many steps are complete; called on the training thread."""
        if self.counted is not None or self.why_not is not None or steps < FIRST_STEP:
            return
        counting, self._counting = self._counting, None
        inference = self._watch.inference
        try:
            if counting is not None:
                counting.end()
                self.counted, self.why_not = counting.result()
            if self.counted is None and self.why_not is None and inference is not None and steps < COUNTED_BY - 1:
                self._counting = Counting(inference, sys.modules["torch"])
                self._counting.begin()
        except Exception as error:  # counting is not worth a training, nor its seams
            self.why_not = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Leave off counting."""
        counting, self._counting = self._counting, None
        if counting is not None:
            counting.end()

    def note(self) -> str | None:
        """Return why FLOPs are not known, where that is not for lack of steps."""
        return f"FLOPs were not counted: {self.why_not}" if self.why_not else None


class Counting:
    """One step: what tells ``inference`` of calls and backward passes tells this first.

    For that its methods are shadowed, so that otherwise nothing has to ask whether FLOPs are counted. The usual call is
    never one of those, and takes the longer way.
    """

    def __init__(self, inference: "Inference", torch: Any) -> None:
        self._inference = inference
        self._torch = torch
        self._mode: Any = None
        self._counts = Counts(torch)
        self._open: list[object] = []  # calls and backward passes around what is counted, the outermost first
        self._why_not: str | None = None
        self._is_incomplete = False

    def begin(self) -> None:
        """Count from here."""
        inference, opens, closes = self._inference, self._opens, self._closes
        call_begins, call_ends = inference.call_begins, inference.call_ends
        backward_begins, backward_ends = inference.backward_begins, inference.backward_ends

        def counted_call_begins(module: Any, inputs: Any, may_explore: bool, caller: Any) -> Any:
            call = call_begins(module, inputs, may_explore, caller)
            # Of what may be a trainer that holds the model, the calls inside count.
            if call.has_grad and not call.is_explored:
                opens(call, lambda: _why_not_counted(self._torch, module))
            return call

        def counted_call_ends(call: Any, module: Any) -> None:
            closes(call)
            call_ends(call, module)

        def counted_backward_begins() -> None:
            backward_begins()
            if not self._counts.forward:
                self._is_incomplete = True  # its forward pass was before this step began
            else:
                self._counts.is_backward = True
                opens(backward_ends, lambda: _why_not_counted(self._torch))

        def counted_backward_ends() -> None:
            closes(backward_ends)
            self._counts.is_backward = False
            backward_ends()

        vars(inference).update(
            usual_call_begins=lambda module, caller: None,
            call_begins=counted_call_begins,
            call_ends=counted_call_ends,
            backward_begins=counted_backward_begins,
            backward_ends=counted_backward_ends,
        )

    def end(self) -> None:
        """Leave everything as it was before."""
        for name in ("usual_call_begins", "call_begins", "call_ends", "backward_begins", "backward_ends"):
            vars(self._inference).pop(name, None)
        if self._open:
            self._is_incomplete = True
            self._open.clear()
            self._leave()

    def result(self) -> tuple[StepFlops | None, str | None]:
        """Return what was counted, or why that will not do; neither where another step may."""
        counts = self._counts
        why_not = self._why_not or counts.why_not
        if why_not is not None or self._is_incomplete or not counts.forward or not counts.backward:
            return None, why_not
        if counts.backward > MOST_BACKWARD * counts.forward:
            return None, "much of the forward pass is not in the call of a module"
        return StepFlops(counts.forward + counts.backward, *counts.where()), None

    def _opens(self, what: object, why_not: Callable[[], str | None]) -> None:
        if self._open or self._is_incomplete or self._why_not is not None:
            return
        try:
            self._why_not = why_not()
            if self._why_not is None:
                if self._mode is None:
                    self._mode = _mode(self._counts)
                self._mode.__enter__()
                self._open.append(what)
        except Exception as error:
            self._why_not = f"{type(error).__name__}: {error}"

    def _closes(self, what: object) -> None:
        if self._open and self._open[-1] is what:
            self._open.pop()
            self._leave()

    def _leave(self) -> None:
        stack = _stack()
        if stack and stack[-1] is self._mode:
            self._mode.__exit__(None, None, None)
        else:  # the program has put another mode on top, and left it there
            self._why_not = "another dispatch mode is at work"
            self._counts.is_over = True


class Counts:
    """FLOPs by what they are of; adds up one operation at a time, and never raises."""

    def __init__(self, torch: Any) -> None:
        self.forward = 0
        self.backward = 0
        self.is_backward = False
        self.is_over = False
        self.why_not: str | None = None
        self._torch = torch
        self._plain = _plain_classes(torch)
        self._by_kind: Counter[tuple[str, Any]] = Counter()  # type of number, device -> FLOPs
        counter = importlib.import_module("torch.utils.flop_counter")
        self._formulas: dict[Any, Callable[..., int]] = dict(counter.flop_registry)
        self._add_attention_on_cpu(counter)

    def _add_attention_on_cpu(self, counter: Any) -> None:
        aten = self._torch.ops.aten

        def forward(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
            return int(counter.sdpa_flop_count(query.shape, key.shape, value.shape))

        def backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
            return int(counter.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))

        for name, formula in ((ON_CPU, forward), (ON_CPU + "_backward", backward)):
            if hasattr(aten, name):
                self._formulas.setdefault(getattr(aten, name), formula)

    def add(self, operation: Any, subclasses: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Add an operation that was done."""
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
            self.why_not = f"tensors of class {others[0].__name__} take part"
        elif formula is not None:
            flops = int(formula(*args, **kwargs, out_val=out))
            if self.is_backward:
                self.backward += flops
            else:
                self.forward += flops
            self._by_kind[self._kind(packet, args, out)] += flops
        elif getattr(operation, "namespace", "") not in KNOWN_NAMESPACES or packet.__name__ in NO_FORMULA:
            self.why_not = f"there is no formula for {packet}"

    def _kind(self, packet: Any, args: Any, out: Any) -> tuple[str, Any]:
        tensors = [one for one in (*args, out) if isinstance(one, self._torch.Tensor)]
        tensor = tensors[0] if tensors else next(one for one in out if isinstance(one, self._torch.Tensor))
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "float32" and tensor.device.type == "cuda" and self._has_tf32(packet):
            dtype = "tf32"
        return dtype, tensor.device

    def _has_tf32(self, packet: Any) -> bool:
        backends = self._torch.backends
        rules = backends.cudnn if "convolution" in packet.__name__ else backends.cuda.matmul
        return bool(rules.allow_tf32)

    def where(self) -> tuple[str, str]:
        """Return the type of number of most FLOPs, and the name of the accelerator, where all are of one."""
        dtypes: Counter[str] = Counter()
        for (dtype, _), flops in self._by_kind.items():
            dtypes[dtype] += flops
        devices = {device for _, device in self._by_kind}
        device = next(iter(devices))
        is_named = len(devices) == 1 and device.type == "cuda"
        return dtypes.most_common(1)[0][0], str(self._torch.cuda.get_device_name(device)) if is_named else ""


def _mode(counts: Counts) -> Any:
    """Return a mode that runs each operation as it is, and adds it up."""
    base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        counts.add(func, types, args, kwargs, out)
        return out

    members = {
        "__torch_dispatch__": dispatch,
        "supports_higher_order_operators": True,
        # Else torch would import its compiler, which takes seconds.
        "_should_skip_dynamo": classmethod(lambda _: False),
    }
    return type("FlopMode", (base,), members)()


def _stack() -> list[Any]:
    stack: list[Any] = importlib.import_module("torch.utils._python_dispatch")._get_current_dispatch_mode_stack()
    return stack


def _why_not_counted(torch: Any, module: Any = None) -> str | None:
    """Return what might be hurt by a mode, or hide from it; None where there is nothing."""
    if _stack():
        return "another dispatch mode is at work"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func is at work"
    if _has_compiled():
        return "torch.compile is at work"
    if torch.jit.is_tracing():
        return "torch.jit traces"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured"
    return None if module is None else _why_not_module(torch, module)


def _has_compiled() -> bool:
    frames = sys.modules.get("torch._dynamo.eval_frame")  # private: any of this may be gone
    if frames is None:
        return False
    backends = getattr(frames, "cached_backends", None)
    return backends is None or any(backend is not None for backend in backends.values())


def _why_not_module(torch: Any, module: Any) -> str | None:
    plain = _plain_classes(torch)
    for inner in module.modules():
        if isinstance(inner, torch.jit.ScriptModule):
            return "modules compiled by torch.jit take part"
        if isinstance(inner, torch.nn.DataParallel):
            return "DataParallel computes on other threads"
        if inner._compiled_call_impl is not None:
            return "the model is compiled"
        for tensor in (*inner._parameters.values(), *inner._buffers.values()):
            if tensor is not None and type(tensor) not in plain:
                return f"tensors of class {type(tensor).__name__} take part"
    return None


def _plain_classes(torch: Any) -> tuple[type, ...]:
    return (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
