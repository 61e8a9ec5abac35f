"""Notebooks: the summary so far appears below each cell that trained, where the kernel's end shows nothing."""

import sys
from collections.abc import Callable
from typing import Any

from training_profiler.settings.settings import Settings

EVENT = "post_run_cell"


class NotebookCells:
    """Calls ``show`` after each cell in which steps have ended.

    Args:
        steps: returns how many steps have ended.
        show: prints the summary so far, on the thread that runs the cells.
    """

    def __init__(self, steps: Callable[[], int], show: Callable[[], None]) -> None:
        self._steps, self._show = steps, show
        self._shown = 0
        self._events: Any = None

    def start(self) -> None:
        """Follow the cells of the kernel that this process is, if it is one."""
        shell = running_kernel()
        if shell is not None and self._events is None:
            self._events = shell.events
            self._events.register(EVENT, self._after_cell)

    def reconfigure(self, settings: Settings) -> None:
        """Go on."""

    def close(self, ended_by: str | None) -> None:
        """Follow no more."""
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Follow no more."""
        events, self._events = self._events, None
        if events is not None and self._after_cell in events.callbacks.get(EVENT, ()):
            events.unregister(EVENT, self._after_cell)

    def notes(self) -> list[str]:
        """Return nothing."""
        return []

    def _after_cell(self, *_result: Any) -> None:
        steps = self._steps()
        if steps > self._shown:
            self._shown = steps
            self._show()


def running_kernel() -> Any:
    """Return the shell of IPython in a kernel of Jupyter; None elsewhere, and in a terminal. Imports nothing."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_shell is None else get_shell()
    return shell if getattr(shell, "kernel", None) is not None else None
