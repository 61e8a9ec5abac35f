"""What the inspections of early steps have in common, and what they ask of torch and of the program."""

import contextlib
import importlib
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, NamedTuple

from training_profiler.instrumentation.context import PatchContext
from training_profiler.instrumentation.loop_detection.modules import is_compiled, modules_within, plain_classes
from training_profiler.model.program import COMPILE
from training_profiler.recording.object_identity import ObjectIdentity

DEPTH: Final = 3  # of inputs within inputs
MOST_MODULES: Final = 64  # of which it is remembered that they have no compiled ones
LIBRARIES: Final = f"{os.sep}site-packages{os.sep}"
MOST_HELD: Final = 500  # objects of a trainer that are looked at, all functions under way together
MOST_LISTED: Final = 32  # of a list
MOST_FRAMES: Final = 100
MOST_DEEP: Final = 3  # trainer.callback_handler.callbacks[0]
NO_TRAINERS: Final = ("torch", "numpy", "training_profiler", *sys.stdlib_module_names)  # their objects hold none


class Counts(NamedTuple):
    """What the training has done so far."""

    backwards: int
    updates: int
    steps: int


class SeenCall(NamedTuple):
    """An outermost call of a module that is about to begin."""

    module: Any
    inputs: tuple[Any, ...]
    has_grad: bool
    caller: Any  # the frame that makes it
    counts: Counts
    is_bare: bool  # the module has no parameters, as far as it is known
    is_watched: bool  # by the program, see below


Following = Generator[None, int, None]


class Inspection:
    """Looks at the outermost calls of early steps, of which two are never under way at once.

    ``EarlySteps`` suppresses what these methods raise.
    """

    def follow(self, seen: SeenCall) -> Following:
        """Follow a call: its first yield ends as the call begins, and its second one, with the time, as the call ends.

        It is closed at the first one where inner calls are recorded, too: the module may be a trainer, and the call
        counts no more.
        """
        yield

    def stop(self) -> None:
        """Look at no more calls, decide what was found, and forget the program's objects."""

    def facts(self, steps: int) -> Any:
        """Return what was found in so many steps; None for nothing."""


class UserProgram:
    """What inspections ask about the program."""

    def __init__(self, context: PatchContext) -> None:
        self.optimizers = context.optimizers  # all that the program has made so far and that are alive
        self.place_of = context.calls.place  # the user's line of a stack, "" if unknown
        self._calls = context.calls
        self._plain: dict[int, ObjectIdentity] = {}  # modules without compiled ones in them, by their ids

    def trained(self) -> set[int]:
        """Return the ids of the parameters that optimizers have."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}

    def may_be_compiled(self, module: Any) -> bool:
        """Return whether hooks inside a call could make dynamo compile again; looks through a module once."""
        if is_compiled(module) or any(call.kind == COMPILE for call in self._calls.facts()):
            return True
        known = self._plain.get(id(module))
        if known is not None and known.matches(module):
            return False
        if any(map(is_compiled, modules_within(module))):
            return True
        if len(self._plain) >= MOST_MODULES:
            self._plain.clear()
        self._plain[id(module)] = ObjectIdentity(module)
        return False


@contextlib.contextmanager
def hooks_of_all(begins: Callable[..., None], ends: Callable[..., None]) -> Iterator[None]:
    """Have hooks of torch around the calls of all modules."""
    hooks = sys.modules["torch"].nn.modules.module
    handles = hooks.register_module_forward_pre_hook(begins), hooks.register_module_forward_hook(ends)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def dispatch_mode(name: str, dispatch: Callable[..., Any]) -> Any:
    """Return a dispatch mode that calls ``dispatch`` for each operation."""
    base = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    members = {
        "__torch_dispatch__": dispatch,
        "supports_higher_order_operators": True,
        # Without it torch would import its compiler, which takes seconds.
        "_should_skip_dynamo": classmethod(lambda _: False),
    }
    return type(name, (base,), members)()


def mode_stack() -> list[Any]:
    """Return the active dispatch modes of this thread, outermost first."""
    stack: list[Any] = importlib.import_module("torch.utils._python_dispatch")._get_current_dispatch_mode_stack()
    return stack


def is_profiled(torch: Any) -> bool:
    """Return whether torch's own profiler is active; it would record each operation twice."""
    return bool(torch.autograd.profiler._is_profiler_enabled or torch._C._autograd._profiler_enabled())


def is_watched() -> bool:
    """Return whether the program may watch the operations of this thread, by a profiler or a mode of torch.

    It would see those of ours. A default device is a mode, too, which only chooses where new tensors are.
    """
    torch = sys.modules["torch"]
    try:
        functions = map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack()))
        others = any(type(each).__name__ != "DeviceContext" for each in functions)  # torch.set_default_device
        return others or is_profiled(torch) or bool(mode_stack())
    except Exception:  # private: any of this may be gone
        return True


def why_not_counted(torch: Any, module: Any = None) -> str | None:
    """Return what would break under a dispatch mode, or bypass it; None for nothing."""
    if mode_stack():
        return "another dispatch mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func is in use"
    frames = sys.modules.get("torch._dynamo.eval_frame")  # private: any of this may be gone
    backends = {} if frames is None else getattr(frames, "cached_backends", None)
    if backends is None or any(backend is not None for backend in backends.values()):
        return "torch.compile is in use"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    for inner in () if module is None else modules_within(module):
        if isinstance(inner, torch.jit.ScriptModule):
            return "it calls modules compiled by torch.jit"
        if isinstance(inner, torch.nn.DataParallel):
            return "DataParallel computes on other threads"
        if inner._compiled_call_impl is not None:
            return "the model is compiled"
        for tensor in (*inner._parameters.values(), *inner._buffers.values()):
            if tensor is not None and type(tensor) not in plain_classes(torch):
                return f"it uses tensors of class {type(tensor).__name__}"
    return None


def first_values(tensor: Any) -> list[float] | None:
    """Return the first values of a tensor; None where that would wait for a device."""
    return tensor.detach().flatten()[:16].tolist() if tensor.is_cpu else None  # they show a change of ``p.data``


def tensors_within(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Yield the tensors among inputs."""
    inner: Iterable[Any] = ()
    if isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, sys.modules["torch"].Tensor):
        yield value
    for each in inner if depth else ():
        yield from tensors_within(each, depth - 1)


def generator_state() -> tuple[Any, ...]:
    """Return the state of the generators that random numbers come from, the device's too. It waits for no device."""
    torch, numpy_random = sys.modules["torch"], sys.modules.get("numpy.random")
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.default_generators[torch.cuda.current_device()].get_state())
    of_numpy: tuple[Any, ...] = ()
    if numpy_random is not None:
        _, key, position, *_ = numpy_random.get_state()
        of_numpy = key.tobytes(), position
    return random.getstate(), *of_numpy, *(state.numpy().tobytes() for state in states)


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the variables of a function under way.

    Before Python 3.13 that makes a dictionary which would keep them alive: it is emptied again, unless the program may
    use it itself.
    """
    code = frame.f_code
    is_copy = sys.version_info < (3, 13)
    if is_copy and (sys.gettrace() is not None or {"locals", "vars", "eval", "exec", "dir"} & set(code.co_names)):
        return []
    held = frame.f_locals
    found = list(held.items())
    if is_copy:
        held.clear()
    return found


def owner_of(frame: FrameType) -> Any:
    """Return the object whose method is under way; None of a function, and of a method that calls its class."""
    if frame.f_code.co_varnames[:1] != ("self",) or package_of(frame.f_globals.get("__name__")) in NO_TRAINERS:
        return None
    return next((value for name, value in locals_of(frame) if name == "self"), None)


def held_by(owner: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the objects of the program's own classes that a trainer holds, and itself if it is one."""
    waiting = deque([(owner, 0)])
    while waiting and len(seen) < MOST_HELD:
        each, depth = waiting.popleft()
        kind = type(each)
        is_list = kind in (list, tuple)
        if id(each) in seen or (package_of(kind.__module__) in NO_TRAINERS and not is_list):
            continue
        seen.add(id(each))
        path = "" if is_list else file_of(kind)
        if path and LIBRARIES not in path:
            yield each
        if depth and path and LIBRARIES not in path:
            continue
        try:
            inner = each[:MOST_LISTED] if is_list else object.__getattribute__(each, "__dict__").values()
        except (AttributeError, TypeError):
            continue
        waiting.extend((value, depth + 1) for value in list(inner) if depth < MOST_DEEP)


def held_under_way(frame: FrameType | None) -> Iterator[Any]:
    """Yield what the trainer holds that the program has called, and not what runs the program itself."""
    seen: set[int] = set()
    within = False
    for _ in range(MOST_FRAMES):
        is_library = frame is not None and LIBRARIES in frame.f_code.co_filename
        if frame is None or (not is_library and (within or frame.f_code.co_name == "<module>")):
            return
        if is_library:
            within = True
            yield from held_by(owner_of(frame), seen)
        frame = frame.f_back


def classes_under_way(frame: FrameType | None) -> set[tuple[str, str]]:
    """Return the files and names of the program's classes that the trainer holds which it has called."""
    return {(file_of(kind), kind.__name__) for kind in map(type, held_under_way(frame))}


def package_of(module: Any) -> str:
    """Return the package of a module's name."""
    return str(module).partition(".")[0]


def file_of(kind: type) -> str:
    """Return the file of the module that a class is of; "" if unknown."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return os.path.abspath(file) if file else ""
