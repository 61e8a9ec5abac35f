"""Methods that stand in front of those of a loop detector for some steps; other steps cost nothing."""

from collections.abc import Callable
from typing import Any

from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector


class Shadow:
    """Puts ``methods`` in front of the detector's, by their names. All module calls pass through them: none is fast."""

    def __init__(self, detector: LoopDetector, **methods: Callable[..., Any]) -> None:
        methods["fast_path_call_begins"] = lambda module, args, kwargs, caller: None
        self._detector, self._names = detector, list(methods)
        vars(detector).update(methods)
        detector.use_shadow(True)

    def end(self) -> None:
        """Restore the detector, the first time that it is called: later, another shadow may be there."""
        if self._names:
            self._detector.use_shadow(False)
        while self._names:
            vars(self._detector).pop(self._names.pop(), None)
