"""The clock of sections on an accelerator: each reading also records a device event."""

import sys
from collections.abc import Callable
from typing import Final

from training_profiler.recording.section import Clock
from training_profiler.recording.untraced import skip_with_callees
from training_profiler.tables.backends import Accelerator, TorchEvent

POOL_SIZE: Final = 4096  # events of one device, more than the limit on cost allows to use
POOL_EMPTY: Final = "the pool of events was empty"
CAPTURED: Final = "a graph was captured"


class DeviceEvent:
    """A moment on the accelerator, or the reason why it could not be recorded."""

    __slots__ = ("device", "event", "is_reached", "users", "why_not")

    def __init__(self, device: int, event: TorchEvent | None, why_not: str = "") -> None:
        self.device = device
        self.event = event
        self.why_not = why_not
        self.is_reached = False  # by the device at the last query
        self.users = 0  # number of spans that still need its event

    def has_been_reached(self) -> bool:
        """Return whether the device has reached the event. Queries the device without waiting."""
        if not self.is_reached and self.event is not None:
            self.is_reached = self.event.query()
        return self.is_reached

    def hold(self) -> None:
        """Prevent reuse of the event until ``release``."""
        self.users += 1

    def release(self) -> bool:
        """Undo one ``hold``. Return whether the event is free."""
        self.users -= 1
        if self.users > 0:
            return False
        self.users, self.is_reached = 0, False
        return True


_POOL_EMPTY: Final = DeviceEvent(-1, None, POOL_EMPTY)
_CAPTURED: Final = DeviceEvent(-1, None, CAPTURED)


class DeviceClock:
    """Stamps the events of the training thread: ``stamps`` has (host time in ns, stamp), in the order of reading."""

    def __init__(self, accelerator: Accelerator, host_clock: Clock, pool_size: int = POOL_SIZE) -> None:
        self.accelerator = accelerator
        self.stamps: list[tuple[int, DeviceEvent]] = []
        self.is_on = True  # False: only the host's clock is read
        self.off_ns: list[tuple[int, int]] = []  # intervals in which it was off
        self.error: Exception | None = None  # an error of the driver, which is not called again
        self._host_clock = host_clock
        self._pool_size = pool_size
        self._free: dict[int, list[DeviceEvent]] = {}  # device -> stamps for reuse
        self.made: dict[int, list[DeviceEvent]] = {}  # device -> all its stamps

    def stamping(self) -> Clock:
        """Return a clock that records an event and then returns the host's time."""
        return self._reading(self._record)

    def waiting(self) -> Clock:
        """Return a clock that waits for all work of the device and then returns the host's time."""
        is_capturing, synchronize = self.accelerator.is_capturing, self.accelerator.synchronize

        def wait() -> DeviceEvent | None:
            if is_capturing():  # waiting would break the capture
                return _CAPTURED
            synchronize()
            return None

        return self._reading(wait)

    def _reading(self, note: Callable[[], DeviceEvent | None]) -> Clock:
        clock, stamps = self._host_clock, self.stamps

        def read() -> int:
            if not self.is_on:
                return clock()
            try:
                stamp = note()
            except Exception as error:
                self.is_on, self.error = False, error
                return clock()
            now_ns = clock()
            if stamp is not None:
                stamps.append((now_ns, stamp))
            return now_ns

        for function in (read, note, self._make, self.accelerator.make_event):
            code = getattr(function, "__code__", None)
            if code is not None:
                skip_with_callees(code)
        return read

    def _record(self) -> DeviceEvent:
        if self.accelerator.is_capturing():
            return _CAPTURED
        device = self.accelerator.current_index()
        free = self._free.get(device)
        stamp = free.pop() if free else self._make(device)
        if stamp.event is not None:
            stamp.event.record()
        return stamp

    def _make(self, device: int) -> DeviceEvent:
        """Return a new stamp. An event belongs to the device that records it first."""
        made = self.made.setdefault(device, [])
        if len(made) >= self._pool_size:
            return _POOL_EMPTY
        stamp = DeviceEvent(device, self.accelerator.make_event())
        made.append(stamp)
        return stamp

    def switch(self, is_on: bool, now_ns: int) -> None:
        """Switch stamping on or off."""
        if self.is_on and not is_on:
            self.off_ns.append((now_ns, sys.maxsize))
        elif is_on and not self.is_on:
            self.off_ns[-1:] = [(from_ns, now_ns) for from_ns, _ in self.off_ns[-1:]]
        self.is_on = is_on

    def close(self) -> None:
        """Free all events that no span holds."""
        self.is_on = False
        self.stamps.clear()
        self._free.clear()
        self.made.clear()

    def keep_for_ever(self) -> None:
        """Stop stamping and never free the existing events: freeing one calls the driver."""
        self.is_on = False
        ctypes = sys.modules.get("ctypes")  # torch has imported it
        if ctypes is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.made))
        self.made = {}

    def give_back(self, stamp: DeviceEvent) -> None:
        """Release the stamp, and reuse its event if no span needs it."""
        if stamp.event is not None and stamp.release():
            self._free.setdefault(stamp.device, []).append(stamp)
