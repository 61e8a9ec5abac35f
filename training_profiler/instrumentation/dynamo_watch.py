"""Says when dynamo, the tracer of ``torch.compile``, traces for the first time.

Nearly all programs that import dynamo never use it: torch's optimizers import it. Until it traces, sections do not ask
whether they are traced.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.tracebacks import hide_our_frames

TRACER: Final = "torch._dynamo.symbolic_convert"  # private: without it, nothing says that dynamo begins to trace


class DynamoWatch:
    """Whether dynamo of this process has traced nothing.

    Args:
        ask_dynamo: lets sections ask whether they are traced, or not.
    """

    def __init__(self, ask_dynamo: Callable[[bool], None]) -> None:
        self._ask_dynamo = ask_dynamo
        self._before_tracing: Callable[[], None] = lambda: None
        self.is_idle = False  # it has traced nothing, and says when it begins

    def before_tracing(self, do: Callable[[], None]) -> None:
        """Call ``do`` before dynamo traces for the first time."""
        self._before_tracing = do

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
