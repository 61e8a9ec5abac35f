"""Functions in C that stand in front of those of patches while a training is under way (native/fronts.c).

In nearly every step, all calls take the fast paths. A front takes them without a frame of Python, and hands any other
call to the function of the patch. Fronts come after the first steps, which most often need more, and go for good before
dynamo, the tracer of ``torch.compile``, traces anything: it follows functions of Python alone.
"""

import functools
from collections.abc import Callable, Sized
from typing import Any, Final

from training_profiler.instrumentation.dynamo_watch import DynamoWatch
from training_profiler.instrumentation.fast_path import FastPath
from training_profiler.instrumentation.patching import Patches
from training_profiler.recording.implementation import Implementation

PLACED_AT: Final = 10  # complete steps

Put = Callable[[Any], None]  # sets a function where the program calls it


class Fronts:
    """The fronts of one process.

    Args:
        implementation: of the recorder; without C, there are no fronts.
        fast_path: records the calls.
        dynamo: says when dynamo begins to trace.
        on_error: called with an error of the profiler's own. Must not raise it into the training.
    """

    def __init__(
        self,
        implementation: Implementation,
        fast_path: FastPath,
        dynamo: DynamoWatch,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._make = implementation.front
        self._fast_path = fast_path
        self._on_error = on_error
        self._offers: list[tuple[Put, Callable[[], Any], Any]] = []  # (where, returns a front, the patch's function)
        self._dynamo = dynamo
        self.are_placed = False
        dynamo.before_tracing(self.withdraw)

    def offer(
        self,
        put: Put,
        kind: str,
        original: Any,
        patch: Any,
        ended: Callable[..., None] | None = None,
        captured: Sized = (),
        classes: tuple[type, ...] = (),
    ) -> None:
        """Have calls of ``patch`` made by a front.

        Args:
            put: sets the front, or ``patch`` again.
            kind: of the calls, see native/fronts.c.
            original: the function that the program calls.
            patch: the function that makes and records every call.
            ended: called at an end that needs more than its time.
            captured: while it has items, every call is the patch's.
            classes: torch's classes that the kind asks for, if it does.
        """
        make = self._make
        if make is not None:
            arguments = (kind, self._fast_path, original, patch, ended, captured, self._on_error, *classes)
            self._offers.append((put, lambda: functools.update_wrapper(make(*arguments), original, updated=()), patch))

    def offer_attribute(
        self,
        patches: Patches,
        owner: type,
        name: str,
        kind: str,
        ended: Callable[..., None] | None = None,
        classes: tuple[type, ...] = (),
    ) -> None:
        """Do the same for ``owner.name``, which ``patches`` have replaced.

        Not for a function of a module: the program would find another object there than it has imported.
        """
        original, patch = patches.replaced(owner, name)
        put = functools.partial(patches.exchange, owner, name)
        self.offer(put, kind, original, patch, ended, classes=classes)

    def place(self) -> None:
        """Put the fronts where they are offered, unless dynamo may have met the functions behind them."""
        if self.are_placed or not self._dynamo.is_idle:
            return
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
        """Withdraw them, and forget what was offered."""
        self.withdraw()
        self._offers.clear()
