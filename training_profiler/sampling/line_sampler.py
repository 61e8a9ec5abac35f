"""The line sampler: records many times a second the line of user code that the training thread runs."""

import opcode
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final, NamedTuple

from training_profiler.recording.section import Clock
from training_profiler.safety.background_thread import BackgroundThread
from training_profiler.safety.fault_guard import Guard
from training_profiler.sampling.frames import current_frames
from training_profiler.sampling.switch_interval import SwitchInterval
from training_profiler.sampling.user_code import MOST_FILES, Places, UserCode, places_of_this_process
from training_profiler.text import printable
from training_profiler.units import NS_PER_S

WAITS: Final = frozenset(("item", "cpu", "tolist", "numpy", "synchronize"))
# Only these instructions stand between loading a method and calling it without arguments.
_BETWEEN: Final = frozenset(opcode.opmap[name] for name in ("CACHE", "PRECALL", "PUSH_NULL") if name in opcode.opmap)
_CACHE: Final = opcode.opmap["CACHE"]
_CALL: Final = opcode.opmap.get("CALL", -1)
_LOAD_METHOD: Final = opcode.opmap.get("LOAD_METHOD", -1)  # up to Python 3.11
_LOAD_ATTR: Final = opcode.opmap["LOAD_ATTR"]  # since 3.12 for both; the lowest bit of its argument marks a method
_EXTENDED: Final = opcode.opmap["EXTENDED_ARG"]
_UNIT: Final = 2  # bytes an instruction: its code and its argument


def waits_in(code: CodeType, instruction: int) -> str:
    """Return the name of the method called at this offset if it waits for the device; else "".

    Only calls without arguments are recognized: ``loss.item()``, but not ``loss.to("cpu")``.
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
# A constant interval could synchronize with the training and sample the same line each time. Multiples of the golden
# ratio modulo 1 spread evenly and never repeat (Weyl). They vary the interval by 30 % without random numbers.
GOLDEN: Final = 0.6180339887498949
JITTER: Final = 0.3
MOST_LOCATIONS: Final = 5000
MOST_WAITING: Final = 100_000  # samples not yet drained, half an hour of them
PATIENCE_S: Final = 1.0  # for the end of the thread, which takes microseconds
_RESUMED: Final = "torch_dynamo_resume_in_"  # the rest of a function after a graph break: ..._NAME_at_LINE


class Location(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str
    waits_in: str = ""  # the call in it that waits for the device: item, cpu, tolist, ...


Sample = tuple[int, Location | None]  # ns of the clock; None: no user code on the stack
_Place = tuple[CodeType, int]  # and the instruction in it


class LineSampler:
    """Samples the training thread from a thread of its own.

    A sample is a time and the innermost line of user code at that time. Its section and step are found later from the
    time, without work on the training thread.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        places: Callable[[], Places] = places_of_this_process,
    ) -> None:
        self.samples = 0
        self._sampled_thread = threading.get_ident()
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
        self._switch_interval = SwitchInterval()

    @property
    def cpu_ns(self) -> int:
        """CPU time that sampling took so far, in ns."""
        return self._ended_cpu_ns + (0 if self._thread is None else self._thread.cpu_ns)

    def start(self, hz: int, since_ns: int) -> None:
        """Sample ``hz`` times a second from now on; 0 stops sampling. Never raises.

        The time from ``since_ns`` until now gets samples without a line. Otherwise later lines would get its share.
        """
        self._hz = hz
        if not hz:
            self.close()
        elif self._thread is None:
            unseen = range(since_ns, self._clock(), NS_PER_S // hz)
            self._waiting += [(ns, None) for ns in unseen[: MOST_WAITING // 2]]
            self._guard(PART, self._start)

    def sample_this_thread(self) -> None:
        """Sample the calling thread. Waiting samples of another thread lose their line."""
        if self._sampled_thread != threading.get_ident():
            self._sampled_thread = threading.get_ident()
            self._waiting = [(ns, None) for ns, _ in self._waiting]

    def pop_samples(self) -> list[Sample]:
        """Return the samples since the last call, in time order."""
        samples, self._waiting = self._waiting, []
        return [(ns, None if place is None else self._location(*place)) for ns, place in samples]

    def close(self) -> None:
        """End the thread and wait for it for at most ``PATIENCE_S``."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.stop()
        thread.join(PATIENCE_S)
        self._ended_cpu_ns += thread.cpu_ns
        self._switch_interval.restore()

    def after_fork_in_child(self) -> None:
        """Drop the thread: a forked child has none."""
        self._thread = None
        self._switch_interval.restore()

    def cost(self, run_ns: int) -> str | None:
        """Return a sentence with the number of samples and their cost; None without samples."""
        if self._user_code is None:
            return None
        share = f" ({self.cpu_ns / run_ns:.2%} of the run)" if run_ns else ""
        return f"{PART}: {self.samples} samples, {self.cpu_ns / NS_PER_S:.3f}s of CPU{share}"

    def _start(self) -> None:
        self._user_code = UserCode(self._places())
        thread = BackgroundThread("lines", self._run, self._guard, PART)
        thread.start()
        self._thread = thread
        self._switch_interval.shorten()

    def _run(self, thread: BackgroundThread) -> None:
        phase = 0.5
        while not thread.wait_for_stop((1 + JITTER * (2 * phase - 1)) / max(1, self._hz)):
            phase = (phase + GOLDEN) % 1
            self._sample()

    def _sample(self) -> None:
        # This thread holds the GIL from here on, so clock and frame show the same moment. No frame may outlive this
        # call: it would keep the tensors of a step alive.
        now_ns = self._clock()
        frame = current_frames().get(self._sampled_thread)
        if frame is not None and len(self._waiting) < MOST_WAITING:
            self._waiting.append((now_ns, self._place(frame)))
            self.samples += 1

    def locate(self, frame: FrameType | None) -> Location | None:
        """Return the innermost line of user code on the stack of ``frame``; None without user code."""
        place = self._place(frame)
        return None if place is None else self._location(*place)

    def _place(self, frame: FrameType | None) -> _Place | None:
        """Return the code and instruction of that line. Names are found later because the training waits here."""
        is_users = self._is_users
        while frame is not None:
            code = frame.f_code
            try:
                is_found = is_users[code.co_filename]
            except KeyError:
                is_found = self._find_file(code.co_filename)
            # Methods such as __init__ from strings were generated by dataclasses or named tuples.
            if is_found and not (code.co_filename == "<string>" and code.co_name.startswith("__")):
                return code, frame.f_lasti
            frame = frame.f_back
        return None

    def _find_file(self, filename: str) -> bool:
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
            return None  # a new line among so many has a negligible share
        return self._locations.setdefault(location, location)


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line that the instruction at this offset in ``code`` is on."""
    lines = (line for begin, end, line in code.co_lines() if begin <= instruction < end)
    return next(lines, None) or code.co_firstlineno


def function_name(code: CodeType) -> str:
    """Return the name of the function, such as ``Trainer.step``. A comprehension belongs to its enclosing function."""
    name = code.co_qualname
    while name.endswith((".<listcomp>", ".<setcomp>", ".<dictcomp>", ".<genexpr>")):
        name = name.rpartition(".")[0].removesuffix(".<locals>")
    name = name.rpartition("<locals>.")[2]
    if name.startswith(_RESUMED):
        name = name.removeprefix(_RESUMED).rpartition("_at_")[0]
    return printable(name)
