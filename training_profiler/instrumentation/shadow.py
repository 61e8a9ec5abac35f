"""Methods that stand in front of those of a loop detector for some steps; other steps cost nothing."""

from collections.abc import Callable
from typing import Any

from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector


class Shadow:
    """Puts ``methods`` in front of the detector's, by their names.

    All module calls pass through ``call_begins`` and ``call_ends`` meanwhile, and all fetches through ``fetch_begins``:
    none is usual.
    """

    def __init__(self, detector: LoopDetector, **methods: Callable[..., Any]) -> None:
        methods["usual_call_begins"] = lambda *of_call: None
        methods["repeated_call_ends"] = lambda call: False
        methods["usual_fetch_begins"] = lambda iterator: None
        self._detector, self._names = detector, list(methods)
        vars(detector).update(methods)
        detector.use_shadow(1)

    def end(self) -> None:
        """Restore the detector, the first time that it is called: later, another shadow may be there."""
        self._detector.use_shadow(-1 if self._names else 0)
        while self._names:
            vars(self._detector).pop(self._names.pop(), None)
