"""Everything a patch may ask for: the training thread, its loop detector, and what to do after an error."""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, Protocol

from training_profiler.instrumentation.call_sites import CallSites, LaterOptimizers, ReadSite
from training_profiler.instrumentation.ddp_statistics import GradientSync, SyncPoints
from training_profiler.instrumentation.fronts import Fronts
from training_profiler.instrumentation.graph_captures import GraphCaptures
from training_profiler.instrumentation.loop_detection.loop_detector import LoopDetector
from training_profiler.instrumentation.patching import Patches, after_import
from training_profiler.instrumentation.repeated_samples import TrainedSamples
from training_profiler.recording.data_loader import LoaderCounts
from training_profiler.recording.event_codes import Fields, field
from training_profiler.recording.object_identity import LiveObjects
from training_profiler.recording.recorder import Recorder
from training_profiler.recording.tracebacks import hide_our_frames

FREE: Final = 0
FORWARD: Final = 1
FETCH: Final = 2
BACKWARD: Final = 3
OTHER_PATCH: Final = 4  # such as a checkpoint; only collectives are recorded inside
COLLECTIVE: Final = 5  # nothing is recorded inside
CAPTURE: Final = 6  # of a CUDA graph: nothing is executed, so nothing is recorded inside


class TrainingThread(Fields):
    """The state that every patch reads first.

    All threads share one object. Calls on threads other than the training thread are not part of the training.
    """

    busy_with: int = field(0)  # the kind of call that the training thread is in
    ident: int = field(1)  # of the training thread; 0 for none yet
    confirmed_detector: LoopDetector | None = field(2)  # takes events that only a training has, without a question
    function: int = field(3)  # of the autograd function under way, negative if it is called without gradients
    fetching: set[int]  # threads in a fetch before confirmation: another thread may train meanwhile

    def __init__(self) -> None:
        self.busy_with = FREE
        self._before_capture = FREE  # the same, before the capture under way
        self.function = 0
        self.ident = 0
        self.has_called_module = False  # with gradients enabled
        self.is_confirmed = False  # it has computed gradients or updated parameters
        self.confirmed_detector = None
        self._owner: Callable[[], threading.Thread | None] = lambda: None  # the confirmed thread, while it lives
        self.fetching = set()

    def is_current(self, is_module_call: bool = False) -> bool:
        """Return whether the calling thread is the training thread.

        The first thread that asks is, until another one shows a stronger sign of training: a module call with gradients
        enabled (``is_module_call``) is stronger than a fetch, and gradients and updates are proof. Between equals the
        main thread wins.
        """
        ident = get_ident()
        if ident in self.fetching:
            return False
        if self.ident != ident:
            self._reset_if_dead()
            is_stronger = is_module_call and not self.is_confirmed
            is_stronger = is_stronger and (not self.has_called_module or ident == threading.main_thread().ident)
            if self.ident and not is_stronger:
                return False
            self.ident, self.busy_with = ident, FREE
        self.has_called_module |= is_module_call
        return True

    def claim(self) -> bool:
        """Confirm the calling thread, which computes gradients or updates; return whether it is the training thread."""
        ident = get_ident()
        if self.ident != ident:
            self._reset_if_dead()
        if self.is_confirmed or ident in self.fetching:
            return self.is_confirmed and self.ident == ident
        if not self.is_current(is_module_call=True):
            self.ident = ident
            self.busy_with = FREE
        self.is_confirmed = True
        self._owner = weakref.ref(threading.current_thread())
        return True

    def _reset_if_dead(self) -> None:
        """Let another thread follow one that has ended, e.g. with a thread for each trial of a search."""
        owner = self._owner()
        if self.is_confirmed and (owner is None or not owner.is_alive()):
            self.reset()

    def fetch_begins(self) -> int:
        """Mark the calling thread as fetching a batch; return the argument of ``fetch_ends``."""
        ident = get_ident()
        if self.is_confirmed:
            self.busy_with = FETCH
        else:  # a thread that only fetches may be the first to ask
            self.fetching.add(ident)
        return ident

    def fetch_ends(self, ident: int) -> None:
        """Mark the fetch as ended."""
        if ident in self.fetching:
            self.fetching.discard(ident)
        elif ident == self.ident:
            self.busy_with = FREE

    def capture_begins(self) -> None:
        """Mark the calling thread as capturing a CUDA graph, if it is the training thread or may become it."""
        if self.ident in (0, get_ident()) and self.busy_with != CAPTURE:
            self._before_capture, self.busy_with = self.busy_with, CAPTURE

    def capture_ends(self, ident: int) -> None:
        """Mark the capture that thread ``ident`` began as ended."""
        if self.ident in (0, ident) and self.busy_with == CAPTURE:
            self.busy_with = self._before_capture

    def reset(self) -> None:
        """Return to the initial state: in a forked process, or after the end of the training thread."""
        self.ident, self.has_called_module, self.is_confirmed, self.busy_with = 0, False, False, FREE
        self.function = 0
        self.confirmed_detector = None
        self.fetching.clear()


class OpenUpdates(Fields):
    """Distinguishes outermost updates from nested ones: of a base class, or of a wrapped optimizer."""

    _backwards: int = field(0)  # of the program, at the last update

    def __init__(self) -> None:
        # The id of the optimizer, and the id and the code of its frame, outermost first. A frame keeps all of its
        # locals alive, and the id of one that has ended may be that of a caller's, which has other code.
        self.open: list[tuple[int, int, CodeType | None]] = []
        self._backwards = 0

    def begin(self, optimizer: Any, frame: FrameType | None) -> tuple[bool, bool]:
        """Return whether this update is outermost, and whether one before it ended by an exception."""
        had_failed = bool(self.open) and not self.is_running(frame)
        self.open.append((id(optimizer), id(frame), None if frame is None else frame.f_code))
        return len(self.open) == 1, had_failed

    def end(self, optimizer: Any) -> bool:
        """Return whether the update that ended was outermost."""
        while self.open:
            if self.open.pop()[0] == id(optimizer):
                return not self.open
        return False

    def follows_backward(self, backwards: int) -> bool:
        """Return whether there are more backward passes than at the last update; remember them for the next."""
        follows, self._backwards = backwards != self._backwards, backwards
        return follows

    def is_running(self, frame: FrameType | None) -> bool:
        """Return whether ``frame`` is within an update; forget updates that ended by an exception."""
        while self.open and frame is not None and (frame := frame.f_back) is not None:
            if id(frame) == self.open[0][1] and frame.f_code is self.open[0][2]:
                return True
        self.open.clear()  # no hook is called when an update raises
        return False


Install = Callable[[Patches, "PatchContext", Any], None]  # the last argument is the torch module


class BackwardWatch(Protocol):
    """Receives the begin of each backward pass."""

    def backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any, trains: bool) -> None:
        """Take the arguments, the frame that calls it, and whether it adds to gradients, as ``autograd.grad`` does not.

        Must not raise.
        """


class WorkerHooks(NamedTuple):
    """Hooks that observe DataLoader workers. The default observes nothing."""

    expect: Callable[[], None] = lambda: None
    """Called before workers start."""
    add: Callable[[LoaderCounts, Iterable[int]], None] = lambda counts, workers: None
    """Takes a loader, and the numbers of the processes that are its workers."""
    observe: Callable[[CodeType], Callable[[], None]] = lambda loop: lambda: None
    """Called in a worker, with the code of torch's loop; returns what to call at the end of the loop."""


NO_HOOKS: Final = WorkerHooks()


class PatchContext(Fields):
    """The state that all patches of a process share.

    Args:
        recorder: of this process.
        create_detector: called at the first event of a training thread. Returns its loop detector, or None if this
            process is not profiled.
        on_error: called with an error of the profiler's own. Must not raise it into the training.
        workers: what follows the workers of loaders.
        read_site: returns the user's line of a stack.
    """

    backward_watch: BackwardWatch | None = field(0)  # in early steps
    unused_graph: int | None = field(1)  # see created_graphs
    updates_at_kept: int | None = field(2)  # see kept_past_updates
    has_grad_scaler: bool = field(3)  # a GradScaler was used, so updates may be skipped

    def __init__(
        self,
        recorder: Recorder,
        create_detector: Callable[[], LoopDetector | None],
        on_error: Callable[[Exception], None],
        workers: WorkerHooks = NO_HOOKS,
        read_site: ReadSite = lambda frame: None,
    ) -> None:
        self.installed: Final[dict[str, Patches]] = {}  # by name
        self.calls: Final = CallSites(read_site)
        self.training_thread: Final = TrainingThread()
        self.detector: LoopDetector | None = None  # changed by use_detector alone
        self.on_error: Final = on_error
        self.workers: Final = workers
        self.is_compiling: Callable[[], bool] = _never
        self.is_tracing: Callable[[], bool] = _never  # a compiler behind dynamo traces, e.g. AOTAutograd
        self.has_grad_scaler = False
        self.has_optimizer = False  # the program has created an optimizer of torch
        self.optimizers: Final = LiveObjects()  # of torch, made so far
        self.later_optimizers: Final = LaterOptimizers()
        self.captures: Final = GraphCaptures()
        self.open_updates: Final = OpenUpdates()
        self.fronts: Final = Fronts(recorder.implementation, recorder.ask_dynamo, on_error)
        self.backward_watch = None
        self.kept_graphs = 0  # backward passes that kept the graph for another one
        # Of these, the ones that an update followed before another backward pass; and the number of updates before the
        # last backward pass, if it kept the graph.
        self.kept_past_updates = 0
        self.updates_at_kept = None
        # Gradients with a graph of their own that no other gradient was computed of before the next update; and the
        # number of updates before the last of them, if nothing used it so far.
        self.created_graphs = 0
        self.unused_graph = None
        self.updates_on_other_threads = 0  # while the training thread runs
        self._recorder = recorder
        self._create_detector = create_detector
        self.reset_rank_observations()

    def reset_rank_observations(self) -> None:
        """Start with empty records of gradient synchronization, sync points and samples."""
        self.sync_points, self.trained_samples = SyncPoints(), TrainedSamples()
        self.gradient_sync = GradientSync(
            self.sync_points,
            lambda: self._recorder.clock(),
            backwards=lambda: None if self.detector is None else self.detector.backwards,
        )

    def use_compiler_of(self, torch: Any) -> None:
        """Ask this torch whether it is compiling or tracing."""
        self.is_compiling = torch.compiler.is_dynamo_compiling
        tracing = getattr(sys.modules.get("torch._guards"), "TracingContext", None)  # private: may be gone
        if tracing is not None:
            self.is_tracing = lambda: tracing.try_get() is not None

    def use_detector(self, detector: LoopDetector | None) -> None:
        """Send events to ``detector`` from now on."""
        self.detector, training_thread = detector, self.training_thread
        training_thread.confirmed_detector = None  # until a gradient or an update confirms the thread
        self.fronts.forget()
        if detector is not None:
            detector.pending.follow_clock(lambda: self.fronts.follow(training_thread, self, detector))

    def current_detector(self, is_module_call: bool = False) -> LoopDetector | None:
        """Return the loop detector on the training thread (see ``TrainingThread.is_current``); None on others."""
        return self._detector_of_this_thread() if self.training_thread.is_current(is_module_call) else None

    def confirm_training(self) -> LoopDetector | None:
        """Return the detector for an event that proves training (a gradient or an update), and claim this thread."""
        training_thread = self.training_thread
        detector = self._detector_of_this_thread() if training_thread.claim() else None
        if detector is not None:
            training_thread.confirmed_detector = detector
        return detector

    def _detector_of_this_thread(self) -> LoopDetector | None:
        detector = self.detector
        if detector is not None and detector.pending.events is self._recorder.buffer().events:
            return detector
        return self._create_detector()

    def watch_backward(self, watch: BackwardWatch | None) -> None:
        """Send the begins of backward passes to ``watch``, too, from now on; None: no longer."""
        self.backward_watch = watch

    def note_backward(self, updates: int, keeps_graph: bool) -> None:
        """Count a backward pass that keeps the graph for another one, and whether an update follows before that."""
        if self.updates_at_kept is not None and self.updates_at_kept < updates:
            self.kept_past_updates += 1
        self.kept_graphs += keeps_graph
        self.updates_at_kept = updates if keeps_graph else None

    def gradient_begins(self, updates: int, creates_graph: bool) -> None:
        """Note a gradient that may use the graph of the one before it, and whether it gets a graph of its own."""
        if self.unused_graph is not None and self.unused_graph < updates:
            self.created_graphs += 1
        self.unused_graph = updates if creates_graph else None

    def add_ddp_module(self, module: Any) -> None:
        """Read the statistics of a DDP module from now on, at the ends of steps."""
        self.gradient_sync.add_module(module)
        self._recorder.be_quiet(None)

    def note_grad_scaler(self) -> None:
        """Remember that a GradScaler was used, so that updates may be skipped."""
        self.has_grad_scaler = True

    def count_update_on_other_thread(self) -> None:
        """Count an optimizer update outside the training thread while a training runs."""
        self.updates_on_other_threads += self.detector is not None

    def note_optimizer(self) -> None:
        """Remember that the program has created an optimizer of torch, which reports its updates.

        Also when, if it has called its model before, and computed no gradient.
        """
        self.has_optimizer = True
        detector = self.detector
        if detector is None or detector.has_trained or get_ident() != self.training_thread.ident:
            return
        if detector.loop_begin_ns is not None:
            detector.optimizer_is_made()

    def events_of_other_thread(self) -> list[int] | None:
        """Return the calling thread's events; None on the training thread, and before a run."""
        if self.detector is None or get_ident() == self.training_thread.ident:
            return None
        return self._recorder.buffer().events

    def after_import(self, name: str, replace: Callable[[str], None], patches: Patches) -> None:
        """Call ``replace(name)`` once module ``name`` is imported: now, or right after its import."""
        if name in sys.modules:
            replace(name)
        else:
            patches.keep(after_import(name, lambda: self.guarded(lambda: replace(name))))

    def between(
        self,
        original: Any,
        begin: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        end: Callable[[Any, bool], object],
        method: str = "",
    ) -> Any:
        """Return ``original`` with what is recorded of its calls.

        Args:
            original: a function of torch's.
            begin: called with the arguments before each call; None if nothing is recorded.
            end: called after the call with what ``begin`` returned, and whether the call raised.
            method: the name that a compiler finds ``original`` by, if it does not follow the function itself.
        """
        is_compiling, on_error = self.is_compiling, self.on_error

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return getattr(args[0], method)(*args[1:], **kwargs) if method else original(*args, **kwargs)
            try:
                begun = None
                try:
                    begun = begin(args, kwargs)
                except Exception as error:
                    on_error(error)
                if begun is None:
                    return original(*args, **kwargs)
                has_failed = True
                try:
                    result = original(*args, **kwargs)
                    has_failed = False
                    return result
                finally:
                    try:
                        end(begun, has_failed)
                    except Exception as error:
                        on_error(error)
            except BaseException as error:
                hide_our_frames(error)
                raise

        return call

    def spans(
        self,
        original: Any,
        most: int,
        kind: int,
        code_of: Callable[[LoopDetector, tuple[Any, ...], dict[str, Any]], int],
        method: str = "",
    ) -> Any:
        """Return ``original`` whose calls on the training thread are spans.

        Args:
            original: a function of torch's.
            most: the last kind of calls inside which these are recorded.
            kind: of these calls.
            code_of: returns the code of a call's enter; 0 if it is not recorded.
            method: as of ``between``.
        """
        training_thread = self.training_thread

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[LoopDetector, int, int] | None:
            detector = training_thread.confirmed_detector or self.detector
            if detector is None or training_thread.busy_with > most or get_ident() != training_thread.ident:
                return None
            code = code_of(detector, args, kwargs)
            if not code:
                return None
            detector.pending.record(code)
            busy_before, training_thread.busy_with = training_thread.busy_with, kind
            return detector, code, busy_before

        def end(begun: tuple[LoopDetector, int, int], has_failed: bool) -> None:
            detector, code, training_thread.busy_with = begun
            detector.pending.record(-code)

        return self.between(original, begin, end, method)

    def guarded(self, work: Callable[[], object]) -> None:
        """Do ``work``; an exception goes to ``on_error``."""
        try:
            work()
        except Exception as error:
            self.on_error(error)


def _never() -> bool:
    return False
