"""Patches of forward and backward passes: outermost calls of a module, and gradients, by ``backward`` or ``grad``.

A forward pass calls hundreds of modules inside one another, so inner calls must cost almost nothing
(benchmarks/patches.py).
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final

from training_profiler.instrumentation.context import BACKWARD, FORWARD, FREE, PatchContext, TrainingThread
from training_profiler.instrumentation.fronts import BACKWARD as GRADIENTS
from training_profiler.instrumentation.fronts import MODULE
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.loop_detection.modules import ModuleCall, is_compiled
from training_profiler.instrumentation.patching import Patches, hidden_from_warnings
from training_profiler.recording.tracebacks import hide_our_frames

KEEPS_GRAPH: Final = 2  # where torch.autograd.backward has retain_graph
CREATES_GRAPH: Final = {True: 3, False: 4}  # where create_graph is passed, of backward and of grad
OF_FUNC: Final = "eager_transforms.py"  # file of torch.func, which passes it itself


def install(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record outermost calls of ``torch.nn.Module``, and of subclasses that replace ``__call__``."""
    original = torch.nn.Module.__call__
    outermost, ends = _outermost(context, torch, original)
    is_known = is_known_call(torch, original)
    patches.replace(torch.nn.Module, "__call__", lambda _: _recorded(context, original, is_known, outermost))
    if is_known:
        context.fronts.offer_attribute(patches, torch.nn.Module, "__call__", MODULE, ends)
        context.after_import("torch._dynamo.variables.nn_module", functools.partial(_inline, patches, torch), patches)
    _install_in_subclasses(patches, context, torch)


def _inline(patches: Patches, torch: Any, module: str) -> None:
    """Have dynamo inline ``forward`` at once, as it does where it finds torch's own function."""
    if hasattr(sys.modules[module], "unpatched_nn_module_call"):  # private: may be gone
        call = patches.replaced(torch.nn.Module, "__call__")[1]
        patches.replace(sys.modules[module], "unpatched_nn_module_call", lambda _: call)


def _recorded(context: PatchContext, original: Any, is_known: bool, outermost: Callable[..., Any]) -> Any:
    """Return the replacement of ``Module.__call__``, which ``is_known_call`` knows or not."""
    training_thread, is_compiling = context.training_thread, context.is_compiling

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # is_compiling comes first: for dynamo it is a constant, while busy_with would need a guard.
        if is_compiling():
            return original(self, *args, **kwargs)
        try:
            return original(self, *args, **kwargs) if training_thread.busy_with else outermost(self, args, kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise

    def call_as_torch(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A copy of torch's own function. Calling that would cost each module another frame. Without keywords, a call
        # needs no dictionary for them.
        if is_compiling():
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)
        try:
            if not training_thread.busy_with:
                return outermost(self, args, kwargs)
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs) if kwargs else self._call_impl(*args)
        except BaseException as error:
            hide_our_frames(error)
            raise

    replacement = call_as_torch if is_known else __call__
    # The signature and source of the original, under the name at which pickle finds it.
    functools.update_wrapper(replacement, original, updated=())
    replacement.__name__, replacement.__qualname__ = "__call__", "Module.__call__"
    replacement.__module__ = "torch.nn.modules.module"
    return replacement


class _Here:
    """Whether and how a call is recorded in this process. A copy, made with a class by cloudpickle, records nothing."""

    def __init__(self, thread: TrainingThread | None = None, outermost: Callable[..., Any] | None = None) -> None:
        self.thread, self.outermost = thread, outermost

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


def _install_in_subclasses(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record calls of the classes that replace ``Module.__call__``, such as gpytorch's, present and future ones."""
    module_class, is_compiling = torch.nn.Module, context.is_compiling

    def make(original: Any) -> Any:
        here = _Here(context.training_thread, _outermost(context, torch, original)[0])

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if is_compiling():
                return original(self, *args, **kwargs)
            try:
                if here.outermost is None or here.thread.busy_with:  # type: ignore[union-attr]
                    return original(self, *args, **kwargs)
                return here.outermost(self, args, kwargs)
            except BaseException as error:
                hide_our_frames(error)
                raise

        return __call__

    def look_at(kind: Any) -> None:
        owners = [base for base in kind.__mro__ if "__call__" in vars(base)]
        code = getattr(kind.__call__, "__code__", None)
        if code is None or kind.__module__.partition(".")[0] == "torch":
            return
        # A call that goes on to torch's is recorded there; one that is inherited, at the class that has it.
        goes_on = owners[1:2] == [module_class] and "__call__" in code.co_names
        if not goes_on and (owners[0] is kind or not issubclass(owners[0], module_class)):
            patches.replace(kind, "__call__", make)

    def make_hook(_: Any) -> Any:
        def __init_subclass__(kind: Any, /, **named: Any) -> None:  # noqa: N807
            try:
                super(module_class, kind).__init_subclass__(**named)
            except BaseException as error:
                hide_our_frames(error)
                raise
            context.guarded(lambda: look_at(kind))

        return classmethod(__init_subclass__)

    patches.replace(module_class, "__init_subclass__", make_hook)
    present: dict[Any, None] = {}  # several bases may lead to one
    level = [module_class]
    while level:
        level = [kind for each in level for kind in type.__subclasses__(each)]
        present.update(dict.fromkeys(level))
    for kind in present:
        look_at(kind)


def _outermost(context: PatchContext, torch: Any, original: Any) -> tuple[Callable[..., Any], Callable[..., None]]:
    """Return a function that makes and records an outermost call, and one that records its end."""
    training_thread = context.training_thread

    def outermost(module: Any, args: Any, kwargs: Any) -> Any:
        if torch.jit.is_tracing():  # by a function that the program has imported before the patches
            return original(module, *args, **kwargs)
        detector = training_thread.confirmed_detector
        if detector is None or get_ident() != training_thread.ident:
            is_module_call = torch.is_grad_enabled() or training_thread.function > 0
            detector = context.current_detector(is_module_call)
            if detector is None:
                return original(module, *args, **kwargs)
        try:
            inputs = (*args, *kwargs.values(), *kwargs) if kwargs else args
            may_explore, function = not is_compiled(module), training_thread.function
            call = detector.call_begins(module, inputs, may_explore, sys._getframe(2), function)
        except Exception as error:
            context.on_error(error)
            return original(module, *args, **kwargs)
        training_thread.busy_with = FREE if call.is_explored else FORWARD
        try:
            return original(module, *args, **kwargs)
        finally:
            ends(detector, call, module)

    def ends(detector: LoopDetector, call: ModuleCall, module: Any) -> None:
        if context.detector is detector:  # otherwise another thread has become the training thread meanwhile
            training_thread.busy_with = FREE
        try:
            detector.call_ends(call, module)
        except Exception as error:
            context.on_error(error)

    return outermost, ends


def is_known_call(torch: Any, original: Any) -> bool:
    """Return whether ``Module.__call__`` is torch's own and only chooses between its two implementations."""
    code = getattr(original, "__code__", None)
    names = ("_compiled_call_impl", "_call_impl")
    return (
        original is getattr(torch.nn.Module, "_wrapped_call_impl", None) and code is not None and code.co_names == names
    )


def install_functions(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Mark outermost executions of ``torch.autograd.Function``, whose forward runs without gradients but has some.

    An adjoint method calls the model there. Nothing is recorded here: module calls inside are one forward pass.
    """
    training_thread, numbers = context.training_thread, itertools.count(1)

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        if (
            training_thread.busy_with
            or training_thread.function
            or (training_thread.ident and training_thread.ident != get_ident())
        ):
            return None
        number = next(numbers)
        training_thread.function = number if torch.is_grad_enabled() else -number
        return True

    def end(begun: bool, has_failed: bool) -> None:
        training_thread.function = 0

    owner = torch.autograd.Function
    apply = vars(owner)["apply"]
    function = getattr(apply, "__func__", apply)  # since torch 2.14 a method of C, called with the class
    patches.replace(owner, "apply", lambda _: classmethod(context.between(function, begin, end)))


def look_for_update(
    context: PatchContext, detector: LoopDetector, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool
) -> None:
    """Find an update that the program made itself, unless it has an optimizer of torch or a failure shows it cannot."""
    with contextlib.suppress(Exception):  # of tensors that are not torch's own
        if not context.has_optimizer and not detector.updates:  # it may be older than the patches
            detector.look_for_update(args, kwargs, trains)
            return
    detector.use_inferred_updates(None)


def _gradient_begins(
    context: PatchContext, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool, frame: FrameType
) -> tuple[LoopDetector, int] | None:
    """Record the begin of a gradient that ``frame`` computes, if it is one of the training's.

    Return the detector, and the kind of call that the training thread was in.
    """
    training_thread, captures = context.training_thread, context.captures
    if captures.under_way:
        capture = captures.on_this_thread()
        if capture is not None:
            if trains:
                capture.gradients_begin()
            return None
    at = CREATES_GRAPH[trains]
    creates_graph = args[at] if len(args) > at else kwargs.get("create_graph")
    if creates_graph is True or context.unused_graph is not None:
        creates_graph = creates_graph and not frame.f_code.co_filename.endswith(OF_FUNC)
        detector = context.detector
        if detector is not None and get_ident() == training_thread.ident:
            context.gradient_begins(detector.updates, creates_graph is True)
    if training_thread.busy_with > FORWARD or (not trains and context.is_tracing()):
        return None
    detector = training_thread.confirmed_detector
    if detector is None or get_ident() != training_thread.ident:
        detector = context.confirm_training()
        if detector is None:
            return None
    if trains and detector.calls:
        detector.trains_within()
        training_thread.busy_with = FREE
    if detector.inferred is not None:
        look_for_update(context, detector, args, kwargs, trains)
    keeps_graph = args[KEEPS_GRAPH] if len(args) > KEEPS_GRAPH else kwargs.get("retain_graph")
    if trains and (keeps_graph or context.updates_at_kept is not None):
        context.note_backward(detector.updates, bool(keeps_graph) and not creates_graph)
    if context.backward_watch is not None:
        context.backward_watch.backward_begins(args, kwargs, frame, trains)
    detector.backward_begins()
    busy_before, training_thread.busy_with = training_thread.busy_with, BACKWARD
    return detector, busy_before


def install_gradients(patches: Patches, context: PatchContext, torch: Any) -> None:
    """Record outermost backward passes. Calls inside one, such as a recomputed forward pass, are part of it."""
    # Tensor.backward looks the function up here. A gradient inside a forward pass, as for forces, trains nothing.
    patches.replace(torch.autograd, "backward", functools.partial(_computing, context, trains=True))
    patches.replace(torch.autograd, "grad", functools.partial(_computing, context, trains=False))


def _computing(context: PatchContext, original: Any, trains: bool) -> Any:
    """Return the replacement of ``original``; a front may make the calls that train."""
    frame_of, frames = sys._getframe, 3 if trains else 2  # of ours

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[LoopDetector, int] | None:
        return _gradient_begins(context, args, kwargs, trains, frame_of(frames))

    def end(begun: tuple[LoopDetector, int], has_failed: bool) -> None:
        _gradient_ends(context.training_thread, begun[1], begun[0])

    recorded = hidden_from_warnings(context.between(original, begin, end))
    if not trains:
        return recorded
    is_compiling, ended = context.is_compiling, functools.partial(_gradient_ends, context.training_thread, FREE)
    computed = context.fronts.in_front_of(GRADIENTS, original, recorded, ended)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            return computed(*args, **kwargs)
        except BaseException as error:
            hide_our_frames(error)
            raise

    return hidden_from_warnings(backward)


def _gradient_ends(training_thread: TrainingThread, busy_before: int, detector: LoopDetector) -> None:
    training_thread.busy_with = busy_before
    detector.backward_ends()
