"""Reads a stack: the innermost line of the user's code, and the frames of libraries that it called."""

import os
import re
import threading
from itertools import islice, takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from training_profiler.base.framework_frames import (
    ANY,
    CALLBACK,
    CHECKING,
    ENGINE,
    LOOP,
    MAKING,
    MODULE_CALL,
    FrameTable,
    LibraryFrame,
    callback_named,
    rows_of,
)
from training_profiler.base.sections import BACKWARD_HOOK, CUSTOM_BACKWARD, FORWARD_HOOK, RECOMPUTATION
from training_profiler.base.startup_frames import (
    COMPILE,
    IMPORT,
    IMPORT_SYSTEM,
    IMPORTS,
    IMPORTS_OF_COMPILE,
    STARTUP_TABLE,
    UNUSED_IMPORT,
    activity_of_users,
)
from training_profiler.base.text import printable
from training_profiler.model.location import Location
from training_profiler.model.program import CallSite
from training_profiler.model.snapshot import BETWEEN, CHECKS, PARAMETERS, PYTHON
from training_profiler.sampling.batch_phases import PhaseReader
from training_profiler.sampling.frames import Frame, outwards
from training_profiler.sampling.user_code import (
    OWN_FOLDER,
    TOKENIZING,
    ByInstruction,
    Instruction,
    UserCode,
    called_function,
    function_name,
    imported,
    is_own_file,
    is_short,
    line_of,
    parameter_loops,
    places_of_this_process,
    reads_number,
    runs_python,
    tokenizes,
    waits_in,
)

# In these, the training waits for work that runs elsewhere and is not sampled: a queue that threads or processes fill,
# or a pipeline in C++. Of several on a stack, the outermost below the user's line holds.
QUEUE: Final = "a queue between threads"
PROCESSES: Final = "a queue between processes"
POOL: Final = "a pool of threads or processes"
SEEN: Final = "torch"  # workers of its loaders are observed, or the report says that they are not

UNSEEN: Final[tuple[LibraryFrame, ...]] = (
    LibraryFrame("/nvidia/dali/", (ANY,), "the pipeline of NVIDIA DALI"),
    LibraryFrame("/ffcv/loader/", (ANY,), "the loader of FFCV"),
    LibraryFrame("/tensorflow/python/data/", (ANY,), "the pipeline of tf.data"),
    LibraryFrame("/datasets/utils/py_utils.py", ("iflatmap_unordered",), "the processes of datasets (num_proc)"),
    LibraryFrame("/queue.py", ("Queue.get",), QUEUE),
    LibraryFrame("/multiprocessing/queues.py", ("Queue.get", "SimpleQueue.get"), PROCESSES),
    LibraryFrame("/multiprocess/queues.py", ("Queue.get", "SimpleQueue.get"), PROCESSES),
    LibraryFrame("/multiprocessing/pool.py", ("IMapIterator.next", "ApplyResult.get", "ApplyResult.wait"), POOL),
    LibraryFrame("/multiprocess/pool.py", ("IMapIterator.next", "ApplyResult.get", "ApplyResult.wait"), POOL),
    LibraryFrame("/concurrent/futures/_base.py", ("Future.result", "as_completed", "wait"), POOL),
    LibraryFrame("/concurrent/futures/process.py", ("_chain_from_iterable_of_lists",), POOL),
    LibraryFrame("/torch/utils/data/", (ANY,), SEEN),
    LibraryFrame("/torch/_inductor/", (ANY,), SEEN),
    LibraryFrame("/torch/distributed/", (ANY,), SEEN),
    LibraryFrame("/torchdata/stateful_dataloader/", (ANY,), SEEN),
)
UNSEEN_TABLE: Final = FrameTable(UNSEEN)


INSTRUCTION_BYTES: Final = 2
MOST_LOCATIONS: Final = 5000
MOST_CODES: Final = 5000
MOST_MAKING: Final = 64  # frames kept of one that makes a batch
MOST_PHASES: Final = 3  # of phases in each other, the outermost
# Their functions call those of torch and of the program, in C too, where no other frame shows it.
_PASS_ON: Final = tuple(
    os.path.join(OWN_FOLDER, name)
    for name in (
        "api",
        "integrations",
        "inspections/flop_",
        "instrumentation/patches",
        "recording",
        "sampling/loader_workers",
        "sampling/worker_observer",
    )
)
_CALLED_BY_AUTOGRAD: Final = (CUSTOM_BACKWARD, RECOMPUTATION)  # beside hooks
_HOOK: Final = "hook"  # torch's name for a hook of a module where it calls one
# Classes that only pass a call on to the callbacks.
_DISPATCHER: Final = re.compile(r"Handler|List$|Trainer|Connector|Net$|^Callback$|^BaseCallback$|^NeuralNet")


class Place(NamedTuple):
    """What is kept of a stack. Names are found later because the training waits while a stack is read."""

    users: Instruction
    loop: Instruction | None = None  # of a trainer, in a library that the line called
    outer: Instruction | None = None  # the first frame of a library that the line called
    inner: Instruction | None = None  # the last of these
    phases: tuple[tuple[str, CodeType], ...] = ()  # of a trainer, the innermost first
    activity: str = ""  # what the program prepares
    holder: Instruction | None = None  # where another thread has the lock that this one waits for
    making: tuple[Instruction, ...] = ()  # from the innermost frame to torch's that makes a batch
    waits_for: str = ""  # work elsewhere that is not sampled
    is_check: bool = False  # a distribution checks its arguments
    last: Instruction | None = None  # the innermost frame, if it is not the user's
    is_blocked: bool = False  # the innermost call had given up the GIL by itself, and no thread of Python wanted it


class _Code(NamedTuple):
    """What the frames of a code object say."""

    code: CodeType  # kept, so that no other one gets its id
    is_users: bool = False
    is_line: bool = False  # whether its lines are the user's
    is_library: bool = False
    is_import: bool = False  # of Python's import system
    phase: str = ""
    hook: str = ""  # of a trainer's, that the name says
    activity: str = ""  # at the start of a program
    waits_for: str = ""
    is_ours: bool = False  # of this package, and passes on no call of the program


class StackReader:
    """Reads stacks and names what they show. Not thread-safe."""

    def __init__(self, user_code: UserCode) -> None:
        self._user_code = user_code
        self._codes: dict[int, _Code] = {}  # by the id of the code: its hash covers all of its constants
        self._locations: dict[Location, Location] = {}
        self._batches = PhaseReader()
        self._call_at = ByInstruction(_call_at)
        self._number_at = ByInstruction(reads_number)
        self._loops_of = ByInstruction(lambda code, _: parameter_loops(code))
        self._imported = ByInstruction(imported)
        self._line_at = ByInstruction(lambda code, instruction: (line_of(code, instruction), function_name(code)))

    # One pass over the frames, of which each is read once: the training waits meanwhile.
    def place(self, frame: Frame | None, until: CodeType | None = None) -> Place | None:  # noqa: C901
        """Return what the stack of ``frame`` shows, up to a frame with the code ``until``; None without user code."""
        codes, innermost = self._codes, frame
        users = loop = outer = inner = making = None
        activity, is_import, waits_for, has_gradients, is_check = "", False, "", False, False
        hook = ""  # the name of a hook, from the user's frame that was read last
        phases: list[tuple[str, CodeType]] = []
        while frame is not None and (code := frame.f_code) is not until:
            found = codes.get(id(code)) or self._add(code)
            _, is_users, is_line, is_library, imports, phase, its_hook, its_activity, its_wait, _ = found
            if is_users:
                if users is None and is_line:
                    users = code, frame.f_lasti
                hook = its_hook
                activity = activity or its_activity
            else:
                if users is None:
                    if imports:
                        is_import = True
                        phases.clear()  # the code of a library's modules, in files that match a row
                    activity = its_activity or activity
                    waits_for = its_wait or waits_for
                if is_library:
                    if hook:  # a callback of the user's, which a library calls
                        phases.append((hook, code))
                        hook = ""
                    if users is None:
                        outer = code, frame.f_lasti
                        inner = inner or outer
                if phase == LOOP:
                    if users is None and loop is None:
                        loop = code, frame.f_lasti
                elif phase == MAKING:
                    making = frame
                elif phase == CHECKING:
                    is_check = is_check or users is None
                elif phase == ENGINE:
                    if users is not None and not (phases and phases[-1][0] in _CALLED_BY_AUTOGRAD):
                        phases.append((BACKWARD_HOOK, code))
                    has_gradients = True
                elif phase == MODULE_CALL:
                    if users is not None and self._call_at(code, frame.f_lasti)[1] == _HOOK:
                        phases.append((FORWARD_HOOK, code))
                elif phase and not (has_gradients and phase == RECOMPUTATION):  # the gradients of what it repeats
                    phases.append((phase, code))
            frame = frame.f_back
        if users is None:
            return None
        inner_ones = takewhile(lambda each: each is not making, outwards(innermost, MOST_MAKING))
        made = () if making is None else tuple((each.f_code, each.f_lasti) for each in (*inner_ones, making))
        # A phase of a trainer says what is waited for: a tracker's thread, a checkpoint.
        unseen = "" if waits_for == SEEN or phases or is_import else waits_for
        last = None if innermost is None or innermost.f_code is users[0] else (innermost.f_code, innermost.f_lasti)
        activity = (IMPORTS_OF_COMPILE if activity == COMPILE else IMPORTS) if is_import else activity
        return Place(users, loop, outer, inner, tuple(phases), activity, None, made, unseen, is_check, last)

    def is_ours(self, frame: Frame) -> bool:
        """Return whether the profiler itself works in the innermost frame: no line of the program takes that time."""
        code = frame.f_code
        return (self._codes.get(id(code)) or self._add(code)).is_ours

    def _add(self, code: CodeType) -> _Code:
        if len(self._codes) >= MOST_CODES:
            self._codes.clear()
        filename, name = code.co_filename, code.co_qualname
        if self._user_code.shown(filename) is not None:
            # Methods such as __init__ from strings were generated by dataclasses or named tuples.
            is_line = not (filename == "<string>" and code.co_name.startswith("__"))
            hook, activity = callback_named(code.co_name), activity_of_users(name)
            found = _Code(code, is_users=True, is_line=is_line, hook=hook, activity=activity)
        else:
            is_library = self._user_code.shown_library(filename) is not None
            found = _Code(
                code,
                is_library=is_library,
                is_import=filename == IMPORT_SYSTEM,
                phase=rows_of(filename, has_hooks=is_library).phase_of(name),
                activity=rows_of(filename, STARTUP_TABLE).phase_of(name),
                waits_for=rows_of(filename, UNSEEN_TABLE).phase_of(name),
                is_ours=is_own_file(filename) and not filename.startswith(_PASS_ON),
            )
        self._codes[id(code)] = found
        return found

    def location(self, place: Place) -> Location | None:
        """Return the names of what a stack showed; None if there are too many."""
        code, instruction = place.users
        file = self._user_code.shown(code.co_filename)
        if file is None:
            return None
        phase = phase_text(place.phases)
        waits, called = self._call_at(code, instruction)
        read = "" if waits else self._number_read(place)
        if read and place.last is None:
            called = read
        elif place.outer is None and is_short(called):  # else it runs the code of a library, as ``list(loader)`` does
            called = PYTHON
        if called in ("", PYTHON):
            around = [loop for loop in self._loops_of(code, 0) if loop[0] <= instruction < loop[1]]
            called = PARAMETERS if around and around[-1][2] else called
        called = CHECKS if place.is_check else called
        module, is_unused = self._imported(code, instruction) if place.activity.startswith(IMPORTS) else ("", False)
        called = f"{UNUSED_IMPORT if is_unused else IMPORT} {module}" if module else called
        location = Location(
            file,
            *self._line_at(code, instruction),
            waits or read,
            self._inside(place, phase),
            phase,
            place.activity,
            "" if place.holder is None else self._users_text(place.holder),
            called,
            self._batches.phase_of(place.making[:-1], place.making[-1]) if place.making else "",
            place.waits_for,
            self._loaded_by(place),
        )
        if location not in self._locations and len(self._locations) >= MOST_LOCATIONS:
            location = location.alone()
            if location not in self._locations and len(self._locations) >= 2 * MOST_LOCATIONS:
                return None  # a new line among so many has a negligible share
        return self._locations.setdefault(location, location)

    def _number_read(self, place: Place) -> str:
        """Return what reads a number out of a tensor, in any code, where it waits without the GIL; else ""."""
        if not place.is_blocked:
            return ""
        # Python's own numbers are read without giving it up. ``f"{loss:.3f}"`` and ``scaler.step()`` call ``item()``.
        if place.last is not None and (method := self._call_at(*place.last)[0]):
            return method
        return self._number_at(*(place.last or place.users))

    def call_site(self, place: Place) -> CallSite | None:
        """Return where the user's line calls torch; None if its file is not the user's by now."""
        code, instruction = place.users
        shown = self._user_code.shown(code.co_filename)
        if shown is None:
            return None
        positions = islice(code.co_positions(), instruction // INSTRUCTION_BYTES, None)
        line, _, column, _ = next(positions, (None, None, None, None))  # the column is in bytes of UTF-8
        path, library = self._user_code.path(code.co_filename), "" if place.inner is None else self._text(place.inner)
        line = line or line_of(code, instruction)
        return CallSite(shown, line, path, -1 if column is None else column, library)

    def function_of_thread(self, frame: Frame | None) -> Instruction | None:
        """Return the outermost frame of a thread that is not of ``threading``: what the thread was started for."""
        stack = [each for each in outwards(frame) if each.f_code.co_filename != threading.__file__]
        return (stack[-1].f_code, stack[-1].f_lasti) if stack else None

    def _users_text(self, frame: Instruction) -> str:
        line, function = self._line_at(*frame)
        path = frame[0].co_filename
        file = self._user_code.shown(path) or self._user_code.shown_library(path) or "/".join(Path(path).parts[-2:])
        return f"{printable(file)}:{line} {function}"

    def _inside(self, place: Place, phase: str) -> str:
        """Return the loop of a trainer and its phase, or the first and last frame of a library."""
        if place.outer is None:
            return ""
        frames = [place.loop or (place.outer if place.outer != place.inner else None)]
        if not phase or place.loop is None:
            frames.append(place.inner)
        texts = [self._text(frame) for frame in dict.fromkeys(frames) if frame is not None]
        return BETWEEN.join([*texts[:1], phase, *texts[1:]] if phase else texts)

    def _loaded_by(self, place: Place) -> str:
        """Return the first and last frame of a library that makes a batch; "" if a line of the user's does."""
        made = place.making
        if not made or any(code is place.users[0] for code, _ in made):
            return ""
        frames = [frame for frame in made if self._user_code.shown_library(frame[0].co_filename) is not None]
        return BETWEEN.join(self._text(frame) for frame in dict.fromkeys((*frames[-1:], *frames[:1])))

    def _text(self, frame: Instruction) -> str:
        line, function = self._line_at(*frame)
        return f"{self._user_code.shown_library(frame[0].co_filename)}:{line} {function}"


def _call_at(code: CodeType, instruction: int) -> tuple[str, str]:
    """Return the call that waits for the device, and the function that is called; each "" for none."""
    if runs_python(code, instruction):
        return "", PYTHON
    called = called_function(code, instruction)
    waits = waits_in(called, code, instruction)
    return waits, TOKENIZING if tokenizes(called, code) else printable(called)


def phase_text(phases: tuple[tuple[str, CodeType], ...]) -> str:
    """Return phases in each other as "logging > callback on_log (WandbCallback)"; they come the innermost first."""
    texts: dict[str, str] = {}  # phase -> the class of the innermost callback
    for phase, code in reversed(phases):
        owner = code.co_qualname.rpartition(".")[0].rpartition(".")[2]
        is_callback = phase.startswith(CALLBACK) and code.co_name.endswith(phase.removeprefix(CALLBACK).strip())
        if phase not in texts:
            texts[phase] = ""
        if is_callback and owner and not owner.startswith("<") and not _DISPATCHER.search(owner):
            texts[phase] = owner
    named = [f"{phase} ({owner})" if owner else phase for phase, owner in texts.items()]
    return BETWEEN.join(named[:MOST_PHASES])


class CallSiteReader:
    """Finds the user's line that calls torch. The paths of the process are known, and read, at its first call."""

    def __init__(self) -> None:
        self._stacks: StackReader | None = None

    def read(self, frame: FrameType | None) -> CallSite | None:
        """Return the user's line nearest to ``frame``; None without user code on the stack."""
        stacks = self._stacks = self._stacks or StackReader(UserCode(places_of_this_process()))
        place = stacks.place(frame)
        return None if place is None else stacks.call_site(place)
