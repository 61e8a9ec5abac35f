"""The ways a process ends or divides: interpreter exit, SIGTERM, fork."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from multiprocessing.util import Finalize
from traceback import walk_stack
from types import FrameType
from typing import Any, Final

from training_profiler.base.units import NS_PER_S, counted
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.identity import Rank
from training_profiler.recording.tracebacks import code_of_handler, is_from_signal_handler
from training_profiler.safety import files as descriptors
from training_profiler.safety.fault_guard import library_of_greenlets
from training_profiler.safety.files import Descriptor, identity, raised
from training_profiler.sampling.frames import StackOfThread
from training_profiler.settings.settings import Settings

# These ask the process to end: what their handlers raise must end our work as well.
ENDING: Final = frozenset(
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
    if (number := getattr(signal, name, None)) is not None
)


@contextmanager
def held_handler_errors() -> Iterator[list[Exception]]:
    """Let signal handlers run, but collect their exceptions in the returned list instead of raising them.

    The handler of SIGCHLD that torch installs for DataLoaders raises wherever the main thread is; workers that crashed
    together with the training are often noticed while the final summary is made. Does nothing on other threads than
    the main thread, where no handler runs.
    """
    held: list[Exception] = []
    is_over = False

    def call(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except Exception as error:
            if is_over:  # an exception left this block while handlers were put back
                raise
            held.append(error)

    replaced: dict[int, tuple[Any, Callable[[int, FrameType | None], Any]]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals() - ENDING:
                handler: Any = signal.getsignal(number)
                if code_of_handler(handler) is not None:
                    replaced[number] = handler, partial(call, handler)
                    signal.signal(number, replaced[number][1])
        yield held
    finally:
        is_over = True
        for each, (handler, holding) in replaced.items():
            if signal.getsignal(each) is holding:  # the handler itself may have installed another one
                signal.signal(each, handler)


SURE_STEPS: Final = 200  # for which the first finding has been the same
LOOK_STEPS: Final = 20  # between two looks at the findings, at least
LOOK_S: Final = 1.0
LOOKS_SHARE: Final = 0.01  # of the time, at most
LEAD: Final = 3  # messages of ranks, from when rank 0 sets the last step until it comes
NEVER: Final = 1 << 62  # a step, and a time in ns
INTERRUPT_OF_LIGHTNING: Final = "_call_and_handle_interrupt", True  # a function, and whether it exits itself
OF_PYTHON: Final = ("_signal", "asyncio.runners")  # handlers of SIGINT for a KeyboardInterrupt, not the program's own


class EndOfTraining(KeyboardInterrupt, SystemExit):
    """Ends the training as Ctrl-C does. Where nothing catches it, the program ends with status 0 and no traceback."""

    code = 0


@dataclass(eq=False)
class PlannedEnd:
    """Ends the training when the user wants it: after a time, some steps, or once the first finding is sure.

    Each rank counts steps itself. Rank 0 alone decides by time and by findings: it sets the last step of all ranks so
    far ahead that each hears of it before.
    """

    rank: Rank
    channel: RankChannel
    clock: Callable[[], int]
    begin_ns: int  # the begin of the run, by ``clock``
    say: Callable[[str], None]  # prints a line and keeps it for the report
    is_on: bool = False  # whether ``step_ended`` is to be called
    next_step: int = NEVER  # the first step for which it is
    ended_by: str | None = None  # the option that has ended the training

    def __post_init__(self) -> None:
        self._is_over = self._is_set = self._is_sure = self._stops_when_sure = False
        self._text, self._steps, self._due_ns = "", NEVER, NEVER
        self._pace: tuple[int, int] | None = None  # steps, and when, shortly before the last step is set
        self._first: tuple[str | None, int] = None, 0  # code of the first finding, and since which step
        self._looked_at = self._next_look_ns = 0

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings. The training is ended once."""
        limit, self._stops_when_sure = settings.for_, settings.stop_when_sure
        self.is_on = not self._is_over and (limit is not None or self._stops_when_sure)
        self._text, self._steps, self._due_ns = "", NEVER, NEVER
        if limit is not None:
            self._text, self._steps = f"--for {limit.text}", limit.steps or NEVER
            self._due_ns = NEVER if limit.seconds is None else self.begin_ns + int(limit.seconds * NS_PER_S)
        self.next_step = self._steps if self.is_on else NEVER
        self.channel.follow_end(self.is_on and (self._due_ns < NEVER or self._stops_when_sure))

    def step_ended(self, steps: int, now_ns: int) -> None:
        """End the training if the last of these ``steps``, which ended at ``now_ns``, is its last.

        Raises:
            EndOfTraining: it is, and the program does not handle SIGINT itself.
        """
        if self._is_over:
            self.say(f"the training caught the interrupt of {self.ended_by} and goes on; it ends at its own will")
            self.is_on, self.next_step, self.ended_by = False, NEVER, None
            return
        self.next_step = min(self.next_step, self._agreed_step(steps, now_ns))
        if steps < self.next_step:
            return
        is_reached = steps >= self._steps or now_ns >= self._due_ns
        self.ended_by = self._text if is_reached or not self._stops_when_sure else "--stop-when-sure"
        self._is_over, self.next_step = True, 0
        why = (
            ""
            if self.ended_by == self._text
            else f": its answer was the same for {SURE_STEPS} steps ({self._first[0]})"
        )
        self.say(f"ending the training after {counted(steps, 'step')}, as {self.ended_by} asked{why}")
        end_training()

    def _agreed_step(self, steps: int, now_ns: int) -> int:
        """Return the last step by time or by findings."""
        if not self.rank.is_one_of_many():
            return steps if self._is_sure or now_ns >= self._due_ns else NEVER
        if self.rank.is_primary() and not self._is_set:
            lead_ns = int(LEAD * self.channel.stores.every_s * NS_PER_S)
            if self._is_sure or now_ns >= self._due_ns - 2 * lead_ns:
                before, since_ns = self._pace = self._pace or (steps, now_ns)
                if now_ns - since_ns >= lead_ns:
                    self._is_set = True
                    self.channel.end_in(1 + ceil((steps - before) * lead_ns / (now_ns - since_ns)))
        return NEVER if self.channel.end_step is None else self.channel.end_step

    def is_look_due(self, steps: int, now_ns: int) -> bool:
        """Return whether ``look`` is to be called with new figures."""
        is_wanted = self._stops_when_sure and not self._is_sure and not self.rank.who.rank
        return is_wanted and now_ns >= self._next_look_ns and steps >= self._looked_at + LOOK_STEPS

    def look(self, first_finding: Callable[[], tuple[int, str | None]]) -> None:
        """Look, beside the training, whether the first finding has been the same for long enough.

        ``first_finding`` returns its code, None without findings, and after how many steps it is so.
        """
        begin_ns = self.clock()
        self._looked_at, code = first_finding()
        if code != self._first[0]:
            self._first = code, self._looked_at
        self._is_sure = code is not None and self._looked_at - self._first[1] >= SURE_STEPS
        now_ns = self.clock()
        self._next_look_ns = now_ns + max(int(LOOK_S * NS_PER_S), int((now_ns - begin_ns) / LOOKS_SHARE))


def end_training() -> None:
    """Raise in the training what Ctrl-C does; a handler of the program's own for SIGINT is called instead.

    Raises:
        EndOfTraining: there is none, or it raised a ``KeyboardInterrupt`` on this thread.
        SystemExit: instead of that, where Lightning would exit with status 1.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    is_own = callable(handler) and getattr(getattr(handler, "func", handler), "__module__", None) not in OF_PYTHON
    if is_own and not is_main:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return
    if is_own:
        try:
            signal.raise_signal(signal.SIGINT)
            return
        except KeyboardInterrupt as error:
            if type(error) is not KeyboardInterrupt:  # the program may wait for its own kind
                raise
    if not is_main:  # which prints tracebacks of all but exactly SystemExit
        setattr(threading, "excepthook", partial(_leave_quietly, threading.excepthook))  # noqa: B010 - of another module
    raise SystemExit(0) if _is_in_lightning() else EndOfTraining


def _is_in_lightning() -> bool:
    """Return whether Lightning's Trainer would turn an interrupt into status 1, and kill the ranks that it started."""
    codes = (frame.f_code for frame, _ in walk_stack(None))
    return any((code.co_name, "exit" in code.co_names) == INTERRUPT_OF_LIGHTNING for code in codes)


def _leave_quietly(others: Callable[[Any], Any], ended: Any) -> None:
    if ended.exc_type is not EndOfTraining:
        others(ended)


STUCK_S: Final = 0.25  # time without progress of the main thread and without its SIGTERM handler
CHECKS: Final = 20  # within STUCK_S
LONGEST_END_S: Final = 20.0  # from SIGTERM to the end of the process, whatever the summary waits for
PATIENCE_S: Final = 1.0  # for the end of a thread, which takes microseconds


class Shutdown:
    """Calls ``finish`` once at the end of the process that installed it.

    SIGTERM is only handled if the program does not handle it itself. Afterwards the process ends by SIGTERM, as it
    would without the profiler. SIGKILL cannot be handled.
    """

    def __init__(self, finish: Callable[[str | None], bool]) -> None:
        self._finish = finish
        self._pid = os.getpid()
        self._is_installed = False
        self._has_signal = self._knows_forks = self._is_paused = False
        self._finalizer: Finalize | None = None
        self._is_handled = False  # SIGTERM reached the main thread
        self._has_finished = threading.Event()  # on another thread than the main thread
        self._forking: set[int] = set()  # threads in which SIGTERM waits meanwhile
        self._watcher: threading.Thread | None = None
        # Receives the number of each signal before Python handles it.
        self._pipe: tuple[Descriptor, Descriptor] | None = None

    def install(self) -> None:
        """Install the exit hook and the handler of SIGTERM."""
        if not self._is_installed:
            atexit.register(self._at_exit)
            if multiprocessing.parent_process() is not None:  # such a child may end without atexit
                self._finalizer = Finalize(None, self._at_exit, exitpriority=0)
            self._is_installed = True
        if threading.current_thread() is threading.main_thread() and _has_default_action(signal.SIGTERM):
            signal.signal(signal.SIGTERM, self._at_sigterm)
            self._has_signal = True
            if hasattr(os, "register_at_fork") and not self._knows_forks:
                self._knows_forks = True
                os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._release)

    def end_where_stuck(self) -> None:
        """Let SIGTERM end the process even if the main thread is in a long call in C and cannot run the handler.

        Without the profiler SIGTERM would end it at once. The call must release the GIL, as those of torch do.
        """
        if self._pipe is not None or not self._has_signal or not hasattr(signal, "pthread_sigmask"):
            return
        if threading.current_thread() is not threading.main_thread() or library_of_greenlets() is not None:
            return
        import ctypes  # imports can fail at the end

        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        before = signal.set_wakeup_fd(-1)
        if before != -1:  # another library uses the only one
            signal.set_wakeup_fd(before)
            return
        self._pipe = _high_pipe()
        if self._pipe is None:
            return
        signal.set_wakeup_fd(self._pipe[1].number, warn_on_full_buffer=False)
        # Until its own hooks have run, a forked child would write its signals to the same pipe.
        os.register_at_fork(before=self._pause, after_in_parent=self._resume)
        self._watcher = threading.Thread(
            target=self._end_when_stuck,
            args=(self._pipe[0], libc.signal),
            name="training_profiler SIGTERM",
            daemon=True,
        )
        self._watcher.start()

    def _hold(self) -> None:
        """Let SIGTERM wait while this thread forks: Python forgets, in a child, what came before the child's hooks."""
        if not self._has_signal or signal.getsignal(signal.SIGTERM) != self._at_sigterm:
            return
        if signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}):
            self._forking.add(threading.get_ident())

    def _release(self) -> None:
        if threading.get_ident() in self._forking:
            self._forking.discard(threading.get_ident())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _pause(self) -> None:
        if self._pipe is not None and threading.current_thread() is threading.main_thread():
            now = signal.set_wakeup_fd(-1)
            self._is_paused = now == self._pipe[1].number
            if not self._is_paused and now != -1:
                signal.set_wakeup_fd(now)

    def _resume(self) -> None:
        if self._is_paused and self._pipe is not None:
            signal.set_wakeup_fd(self._pipe[1].number, warn_on_full_buffer=False)
            self._is_paused = False

    def _end_when_stuck(self, descriptor: Descriptor, set_handler: Callable[[int, Any], Any]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the training's threads handle them
        while descriptor.is_ours() and (came := os.read(descriptor.number, 64)):
            if signal.SIGTERM not in came:
                continue
            if self._is_stuck():
                self._finish_beside()
            elif not self._is_handled:
                continue
            self._has_finished.wait(LONGEST_END_S)  # the main thread, once it has finished, ends the process itself
            set_handler(signal.SIGTERM, None)  # Python can only set handlers on the main thread
            _kill_by_sigterm()
        descriptor.close()

    def _finish_beside(self) -> None:
        if library_of_greenlets() is not None:  # since this thread began
            self._has_finished.set()
            return
        threading.Thread(target=self._finish_here, name="training_profiler end", daemon=True).start()

    def _finish_here(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with suppress(Exception):
                self._finish("SIGTERM")
        finally:
            self._has_finished.set()

    def _is_stuck(self) -> bool:
        """Return whether the main thread makes no progress and has not run the handler of SIGTERM.

        A thread that makes progress did not get the signal: a forked child writes to the same pipe.
        """
        place = _place_of_main_thread()
        for _ in range(CHECKS):
            time.sleep(STUCK_S / CHECKS)
            if self._is_handled or _place_of_main_thread() != place:
                return False
        return signal.getsignal(signal.SIGTERM) == self._at_sigterm  # the program may have installed its own handler

    def _close_pipe(self) -> None:
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        (reads, writes), self._pipe = self._pipe, None
        now = signal.set_wakeup_fd(-1)
        if now not in (-1, writes.number):
            signal.set_wakeup_fd(now)
        writes.close()  # ends the thread
        watcher, self._watcher = self._watcher, None
        if os.getpid() != self._pid:  # the child does not have the thread
            reads.close()
        elif watcher is not None:
            watcher.join(PATIENCE_S)

    def remove(self) -> None:
        """Remove the hooks. Handlers that the program installed later stay."""
        self._close_pipe()
        atexit.unregister(self._at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()
            self._finalizer = None
        self._is_installed = False
        if self._has_signal and threading.current_thread() is threading.main_thread():
            # == and not `is`: each access makes a new bound method.
            if signal.getsignal(signal.SIGTERM) == self._at_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._has_signal = False

    def _at_exit(self) -> None:
        # Ctrl-C at the end, often the second one, ends at once and without a traceback of ours.
        if os.getpid() != self._pid:
            return
        # What ends the program: the interpreter stores it after printing the traceback and before atexit.
        uncaught = getattr(sys, "last_type", None)
        for _ in range(2):  # a handler may raise before the end holds what handlers raise
            try:
                with suppress(KeyboardInterrupt):
                    self._finish(None if uncaught is None else str(uncaught.__name__))
                return
            except Exception as error:
                if not is_from_signal_handler(error):  # the program has ended, nothing is left that it could stop
                    raise

    def _at_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self._is_handled = True
        is_over = True
        if os.getpid() == self._pid:
            with suppress(Exception):  # of the program's own handlers; without the profiler, they would not have run
                is_over = self._finish("SIGTERM")
        if is_over:
            self.exit_by_sigterm()

    def exit_by_sigterm(self) -> None:
        """End the process by SIGTERM, as without the profiler."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _kill_by_sigterm()


def _kill_by_sigterm() -> None:
    if hasattr(signal, "pthread_sigmask"):  # every thread may block it, once the thread that received it has ended
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)


def _has_default_action(signum: int) -> bool:
    """Return whether neither Python nor a library in C, such as faulthandler, handles the signal."""
    if signal.getsignal(signum) != signal.SIG_DFL:
        return False
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            caught = next((line for line in status if line.startswith("SigCgt:")), "SigCgt: 0")
    except OSError:  # not on Linux
        return True
    return not int(caught.split()[1], 16) >> (signum - 1) & 1


def _high_pipe() -> tuple[Descriptor, Descriptor] | None:
    """Return both ends of a pipe, with high numbers; None where the limit is lower."""
    high = [raised(descriptor) for descriptor in os.pipe()]
    if min(high) < descriptors.LOWEST:
        for descriptor in high:
            os.close(descriptor)
        return None
    os.set_blocking(high[1], False)
    reads, writes = (Descriptor(number, identity(number)) for number in high)
    return reads, writes


def _place_of_main_thread() -> tuple[int, int]:
    frame = StackOfThread(threading.main_thread().ident or 0).frame()
    return (id(frame), -1 if frame is None else frame.f_lasti)


def waited_for_children() -> bool:
    """Return whether this process has waited for children that have used most of the CPU time of both."""
    times = os.times()
    return times.children_user + times.children_system > times.user + times.system


def is_worker() -> bool:
    """Return whether multiprocessing started this process to serve another."""
    return multiprocessing.parent_process() is not None or is_being_spawned() or is_loader_worker()


def is_loader_worker() -> bool:
    """Return whether this process is a worker of a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def is_being_spawned() -> bool:
    """Return whether this is a child of multiprocessing that is still importing its parent's main module."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))  # private: may be gone
