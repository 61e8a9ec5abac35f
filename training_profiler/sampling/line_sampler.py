"""The line sampler: looks many times a second which line of the user's code the training thread is at."""

import opcode
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final, NamedTuple

from training_profiler.recording.section import Clock
from training_profiler.recording.section_names import printable
from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import Guard
from training_profiler.sampling.frames import current_frames
from training_profiler.sampling.user_code import MOST_FILES, Places, UserCode, places_of_this_process
from training_profiler.units import NS_PER_S

WAITS: Final = frozenset(("item", "cpu", "tolist", "numpy", "synchronize"))
# Between the look-up of a method and its call without arguments there is nothing but these.
_BETWEEN: Final = frozenset(opcode.opmap[name] for name in ("CACHE", "PRECALL", "PUSH_NULL") if name in opcode.opmap)
_CACHE: Final = opcode.opmap["CACHE"]
_CALL: Final = opcode.opmap.get("CALL", -1)
_LOAD_METHOD: Final = opcode.opmap.get("LOAD_METHOD", -1)  # up to Python 3.11
_LOAD_ATTR: Final = opcode.opmap["LOAD_ATTR"]  # since 3.12 for both; the lowest bit of its argument tells which
_EXTENDED: Final = opcode.opmap["EXTENDED_ARG"]
_UNIT: Final = 2  # bytes an instruction: its code and its argument


def waits_in(code: CodeType, instruction: int) -> str:
    """Return the name of the method that the instruction at this offset calls, where that waits; else "".

    Only calls without arguments are known: ``loss.item()``, and not ``loss.to("cpu")``.
    """
    raw = code.co_code
    while 0 < instruction < len(raw) and raw[instruction] == _CACHE:  # where the call is of a Python function
        instruction -= _UNIT
    if not 0 <= instruction < len(raw) or raw[instruction] != _CALL or raw[instruction + 1]:
        return ""
    at = instruction - _UNIT
    while at >= 0 and raw[at] in _BETWEEN:
        at -= _UNIT
    if at < 0 or raw[at] not in (_LOAD_METHOD, _LOAD_ATTR):
        return ""
    argument = raw[at + 1]
    if raw[at - _UNIT] == _EXTENDED and at >= _UNIT:
        argument |= raw[at - _UNIT + 1] << 8
    index = argument if raw[at] == _LOAD_METHOD or _LOAD_METHOD >= 0 else argument >> 1
    name = code.co_names[index] if index < len(code.co_names) else ""
    return name if name in WAITS else ""


PART: Final = "line sampler"
# Longest that the sampler waits for the GIL, in s. By CPython's own 5 ms it would see the training thread only where
# that lets go of the GIL by itself, in a large torch operation: a Python function with 27 % of the time was seen in 1 %
# of the samples, and is in 25 % this way (benchmarks/line_sampler.py). Two busy Python threads lose 1 to 3 % by it.
HANDOVER_S: Final = 0.0001
# Waits of one length could fall into step with the training and see the same line each time. Multiples of the golden
# ratio, modulo 1, never repeat and spread evenly (Weyl), so the waits vary by 30 % without a random number.
GOLDEN: Final = 0.6180339887498949
JITTER: Final = 0.3
MOST_LOCATIONS: Final = 5000
MOST_WAITING: Final = 100_000  # samples that nobody has taken yet: half an hour of them
PATIENCE_S: Final = 1.0  # for the thread to end, which takes it microseconds
_RESUMED: Final = "torch_dynamo_resume_in_"  # the rest of a function after a graph break: ..._NAME_at_LINE


class Location(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    waits_in: str = ""  # the call in it that waits for the device: item, cpu, tolist, ...


Sample = tuple[int, Location | None]  # ns of the clock; None: nothing on the stack was the user's
_Place = tuple[CodeType, int]  # and the instruction in it


class LineSampler:
    """Samples one thread, ``watched``, from a thread of its own.

    A sample is the moment and the innermost line of the user's code at that moment. What it is a part of, a section or
    a step, is found later from the moment: the training does nothing for it.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        places: Callable[[], Places] = places_of_this_process,
    ) -> None:
        self.samples = 0
        self._watched = threading.get_ident()
        self._clock = clock
        self._guard = guard
        self._places = places
        self._waiting: list[tuple[int, _Place | None]] = []
        self._is_users: dict[str, bool] = {}  # by the file of a code object
        self._locations: dict[Location, Location] = {}
        self._user_code: UserCode | None = None
        self._hz = 0
        self._thread: BackgroundThread | None = None
        self._ended_cpu_ns = 0  # of threads that have ended
        self._handover_before_s: float | None = None

    @property
    def cpu_ns(self) -> int:
        """CPU time that sampling took so far, in ns."""
        return self._ended_cpu_ns + (0 if self._thread is None else self._thread.cpu_ns)

    def start(self, hz: int, since_ns: int) -> None:
        """Sample ``hz`` times a second from now on; 0 for not at all. Never raises.

        What went by from ``since_ns`` until now without being looked at is booked as nobody's line, or the lines seen
        later would get its share of the time.
        """
        self._hz = hz
        if not hz:
            self.close()
        elif self._thread is None:
            unseen = range(since_ns, self._clock(), NS_PER_S // hz)
            self._waiting += [(ns, None) for ns in unseen[: MOST_WAITING // 2]]
            self._guard(PART, self._start)

    def sample_this_thread(self) -> None:
        """Sample the calling thread; what was seen of another is no line of this one."""
        if self._watched != threading.get_ident():
            self._watched = threading.get_ident()
            self._waiting = [(ns, None) for ns, _ in self._waiting]

    def take(self) -> list[Sample]:
        """Return the samples not handed out before, in time order."""
        samples, self._waiting = self._waiting, []
        return [(ns, None if place is None else self._location(*place)) for ns, place in samples]

    def close(self) -> None:
        """End the thread; waits for it, but not for long."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.stop()
        thread.join(PATIENCE_S)
        self._ended_cpu_ns += thread.cpu_ns
        self._hand_over_as_before()

    def after_fork_in_child(self) -> None:
        """Drop the thread: a forked child has none."""
        self._thread = None
        self._hand_over_as_before()

    def cost(self, run_ns: int) -> str | None:
        """Return a sentence on how much was sampled in a run of ``run_ns``, and what it cost; None if it never was."""
        if self._user_code is None:
            return None
        share = f" ({self.cpu_ns / run_ns:.2%} of the run)" if run_ns else ""
        return f"{PART}: {self.samples} samples, {self.cpu_ns / NS_PER_S:.3f}s of CPU{share}"

    def _start(self) -> None:
        self._user_code = UserCode(self._places())
        thread = BackgroundThread("lines", self._run, self._guard, PART)
        thread.start()
        self._thread = thread
        if sys.getswitchinterval() > HANDOVER_S:
            self._handover_before_s = sys.getswitchinterval()
            sys.setswitchinterval(HANDOVER_S)

    def _hand_over_as_before(self) -> None:
        # Unless the program has set it itself meanwhile.
        if self._handover_before_s is not None and abs(sys.getswitchinterval() - HANDOVER_S) < 1e-9:
            sys.setswitchinterval(self._handover_before_s)
        self._handover_before_s = None

    def _run(self, thread: BackgroundThread) -> None:
        phase = 0.5
        while not thread.wait_for_stop((1 + JITTER * (2 * phase - 1)) / max(1, self._hz)):
            phase = (phase + GOLDEN) % 1
            self._sample()

    def _sample(self) -> None:
        # The GIL is ours from here on, so the clock and the frame tell of one moment. No frame outlives this call:
        # one would keep the locals of its function alive, and with them the tensors of a step.
        now_ns = self._clock()
        frame = current_frames().get(self._watched)
        if frame is not None and len(self._waiting) < MOST_WAITING:
            self._waiting.append((now_ns, self._place(frame)))
            self.samples += 1

    def locate(self, frame: FrameType | None) -> Location | None:
        """Return the innermost line of the user's code on the stack of ``frame``; None where nothing is the user's."""
        place = self._place(frame)
        return None if place is None else self._location(*place)

    def _place(self, frame: FrameType | None) -> _Place | None:
        """Return where that line is; what it is called can wait, for the training waits meanwhile."""
        is_users = self._is_users
        while frame is not None:
            code = frame.f_code
            try:
                is_found = is_users[code.co_filename]
            except KeyError:
                is_found = self._look_up(code.co_filename)
            # What is made from strings and has a name like __init__ was written by dataclasses or a named tuple.
            if is_found and not (code.co_filename == "<string>" and code.co_name.startswith("__")):
                return code, frame.f_lasti
            frame = frame.f_back
        return None

    def _look_up(self, filename: str) -> bool:
        assert self._user_code is not None
        if len(self._is_users) >= MOST_FILES:
            self._is_users.clear()
        is_users = self._is_users[filename] = self._user_code.shown(filename) is not None
        return is_users

    def _location(self, code: CodeType, instruction: int) -> Location | None:
        assert self._user_code is not None
        file = self._user_code.shown(code.co_filename)
        if file is None:
            return None
        location = Location(file, line_of(code, instruction), function_name(code), waits_in(code, instruction))
        if location not in self._locations and len(self._locations) >= MOST_LOCATIONS:
            return None  # of so many lines, one that was not seen before has no share worth a word
        return self._locations.setdefault(location, location)


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line that the instruction at this offset in ``code`` is on."""
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
    return next(lines, None) or code.co_firstlineno


def function_name(code: CodeType) -> str:
    """Return what to call the function of ``code``: ``Trainer.step``; a comprehension is of the function around it."""
    name = code.co_qualname
    while name.endswith((".<listcomp>", ".<setcomp>", ".<dictcomp>", ".<genexpr>")):
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    name = name.rpartition("<locals>.")[2]
    if name.startswith(_RESUMED):
        name = name.removeprefix(_RESUMED).rpartition("_at_")[0]
    return printable(name)
