"""A forked child of a process that has recorded: it has what torch made for that, and none of the threads."""

import contextlib
import ctypes
from typing import Any

from training_profiler.device.accelerator import find_accelerator


def stop_in_child(torch: Any, profile: Any) -> None:
    """Record no more in a child that was forked in the middle of a window; the window is its parent's."""
    with contextlib.suppress(Exception):
        if find_accelerator() is None and len(profile.activities) == 1:
            torch.autograd.profiler._disable_profiler()
        else:  # to stop it would ask the accelerator's driver, which is the parent's
            torch.autograd._enable_record_function(False)
        torch.autograd.profiler._run_on_profiler_stop()


def end_past_destructors() -> None:
    """Have this forked process end, with its own status, before libraries take down what they made in its parent.

    After any use of torch.profiler, the program's own too, they wait there for ever, for a thread that the child does
    not have (torch 2.13). Python's own end comes before; children of multiprocessing never come so far.
    """
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # of glibc alone
