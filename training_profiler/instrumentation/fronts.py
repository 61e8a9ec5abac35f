"""Functions in C that stand in front of those of patches while a training is under way (native/fronts.c).

A front makes and records nearly every call without a frame of Python, and hands any other call to the function of the
patch. Fronts come after the first steps, which most often need more, and go for good before dynamo, the tracer of
``torch.compile``, traces anything: it follows functions of Python alone.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.loader_passes import PassPhase
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.event_codes import Fields, time_only
from training_profiler.recording.implementation import Implementation
from training_profiler.recording.tracebacks import hide_our_frames

PLACED_AT: Final = 10  # complete steps
TRACER: Final = "torch._dynamo.symbolic_convert"  # private: without it, nothing says that dynamo begins to trace
MODULE, FETCH, BEFORE_UPDATE, AFTER_UPDATE, BACKWARD = range(5)  # kinds of calls, as in native/fronts.c


class DynamoWatch:
    """Says when dynamo, the tracer of ``torch.compile``, traces for the first time in this process.

    Nearly all programs that import dynamo never use it: torch's optimizers import it. Until it traces, sections do not
    ask whether they are traced.

    Args:
        ask_dynamo: lets sections ask whether they are traced, or not.
        before_tracing: called before dynamo traces for the first time.
    """

    def __init__(self, ask_dynamo: Callable[[bool], None], before_tracing: Callable[[], None]) -> None:
        self._ask_dynamo, self._before_tracing = ask_dynamo, before_tracing
        self.is_idle = False  # it has traced nothing, and says when it begins

    def begin(self, tracer: Any, patches: Patches, has_traced: bool) -> None:
        """Watch the module ``tracer``, which may have traced before, until the patches are undone."""
        if hasattr(tracer, "InstructionTranslator"):
            patches.replace(tracer.InstructionTranslator, "__init__", self._tracing)
            patches.keep(self._end)  # which comes before the patch is undone
            self.is_idle = not has_traced
            self._ask_dynamo(has_traced)

    def _end(self) -> None:
        """Be as dynamo can follow from here on: what it has traced, it may trace again."""
        if self.is_idle:
            self.is_idle = False
            self._ask_dynamo(True)
            self._before_tracing()

    def _tracing(self, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                self._end()
                original(*args, **kwargs)
            except BaseException as error:
                hide_our_frames(error)
                raise

        return __init__


class Fronts:
    """The fronts of one process.

    Args:
        implementation: of the recorder; without C, there are no fronts.
        ask_dynamo: lets sections ask whether they are traced, or not.
        on_error: called with an error of the profiler's own. Must not raise it into the training.
    """

    def __init__(
        self,
        implementation: Implementation,
        ask_dynamo: Callable[[bool], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._make = implementation.front
        self.usual = None if implementation.usual_calls is None else implementation.usual_calls()
        self._on_error = on_error
        self._offers: list[tuple[Callable[[Any], None], Callable[[], Any], Any]] = []  # (puts one, makes it, the patch)
        self.dynamo = DynamoWatch(ask_dynamo, self.withdraw)
        self.are_placed = False

    def in_front_of(self, kind: int, original: Any, patch: Any, ended: Callable[..., None] | None) -> Any:
        """Return a front of ``patch``, or that itself without C; for the arguments see ``offer``."""
        if self._make is None:
            return patch
        return self._make(kind, self.usual, original, patch, ended, self._on_error, MethodType)

    def offer(
        self, put: Callable[[Any], None], kind: int, original: Any, patch: Any, ended: Callable[..., None] | None = None
    ) -> None:
        """Have calls of ``patch`` made by a front.

        Args:
            put: sets the front, or ``patch`` again, where the program calls it.
            kind: of the calls.
            original: the function that the program calls.
            patch: the function that makes and records every call.
            ended: called at an end that is not usual.
        """
        if self._make is not None:
            make = functools.partial(self.in_front_of, kind, original, patch, ended)
            self._offers.append((put, lambda: functools.update_wrapper(make(), original, updated=()), patch))

    def offer_attribute(
        self, patches: Patches, owner: type, name: str, kind: int, ended: Callable[..., None] | None = None
    ) -> None:
        """Do the same for ``owner.name``, which ``patches`` have replaced.

        Not for a function of a module: the program would find another object there than it has imported.
        """
        self.offer(functools.partial(patches.exchange, owner, name), kind, *patches.replaced(owner, name), ended)

    def follow(self, thread: Any, context: Any, detector: Any) -> None:
        """Record the calls of ``detector`` from now on, with the present clock of its events."""
        if self.usual is None:
            return
        codes, updates = detector.codes, context.open_updates
        parts = (
            *(detector, thread, context, updates, detector.phases, detector.phases.passes, detector.update),
            *(detector.input_sizes, detector.steps, detector.end_step, detector.buffer),
            *(detector.calls, detector.known_calls, updates.open, context.captures.under_way),
            *(detector.is_grad_enabled, PassPhase.TRAINING, detector.pending.writer(detector.codes.forward)),
            *("_call_impl", "_compiled_call_impl", "_num_yielded", "loader_id", "training", "f_back"),
        )
        code_of = (codes.forward, codes.data_loading, codes.backward, codes.optimizer, codes.no_grad)
        self.usual.use(Fields, (*parts, *range(4), *code_of, time_only(codes.no_grad)))

    def forget(self) -> None:
        """Leave all calls to the patches until another detector is followed."""
        if self.usual is not None:
            self.usual.forget()

    def place(self, steps: int = PLACED_AT) -> None:
        """Put the fronts where they are offered after enough steps, unless dynamo may have met what is behind them."""
        if steps >= PLACED_AT and not self.are_placed and self.dynamo.is_idle:
            self.are_placed = True
            for put, make, _ in self._offers:
                put(make())

    def withdraw(self) -> None:
        """Put the functions of patches in place of the fronts. Calls under way run to their end."""
        if self.are_placed:
            self.are_placed = False
            for put, _, patch in self._offers:
                put(patch)

    def close(self) -> None:
        """Forget what was offered: patches that are undone take what stands in front of them along."""
        self.are_placed = False
        self._offers.clear()
