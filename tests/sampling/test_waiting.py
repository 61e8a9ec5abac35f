"""Detection of calls that wait for the device."""

import dis
import threading
from functools import partial

import pytest
import torch

from tests.support.recording import implementation_of
from training_profiler.model.location import Location
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.line_sampler import LineSampler, has_gil
from training_profiler.sampling.location import called_function, reads_number, waits_in
from training_profiler.sampling.lock_watch import LockWatch
from training_profiler.sampling.stacks import Place, StackReader
from training_profiler.sampling.user_code import Places, UserCode, places_of_this_process
from training_profiler.snapshot.snapshot import PYTHON


def calls_of(source: str) -> list[str]:
    """Return the name of each waiting call in ``source``."""
    code = compile(source, "train.py", "exec")
    calls = [step.offset for step in dis.get_instructions(code) if step.opname == "CALL"]
    return [name for offset in calls if (name := waits_in(called_function(code, offset), code, offset))]


@pytest.mark.parametrize("source", ["loss.backward()", "item()", "loss.item", "table.item(3)", "f(loss)", "item = 1"])
def test_other_calls_do_not_wait(source):
    assert calls_of(source) == []


def test_only_the_call_itself_waits():
    assert calls_of("log(float(loss.item()), step())") == ["item"]


def test_names_beyond_the_first_256_are_found():
    many = "\n".join(f"name_{i} = {i}" for i in range(300))
    assert calls_of(f"{many}\nloss.item()") == ["item"]


def numbers_of(source: str) -> list[str]:
    """Return what reads a number in ``source``, instruction by instruction."""
    code = compile(source, "train.py", "exec")
    offsets = [step.offset for step in dis.get_instructions(code)]
    return [name for offset in offsets if (name := reads_number(code, offset))]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("total += float(loss)", "float"),
        ("right += int(hits)", "int"),
        ("stop = bool(done)", "bool"),
        ("ok = math.isfinite(loss)", "math.isfinite"),
        ("if loss > best: save()", "bool"),
        ("while error: step()", "bool"),
        ("assert finite", "bool"),
        ("wrong = not same", "bool"),
        ("x = a or b", "bool"),
    ],
)
def test_numbers_are_read_by_functions_and_conditions(source, name):
    assert set(numbers_of(source)) == {name}


PLACES = Places("/project/train.py", "/project", ("/usr/lib/python3.11",), ("/usr/lib/python3.11",))


def place_in(source: str, name: str, filename: str = "/project/train.py") -> tuple:
    """Return the code of ``source``, and its instruction that calls ``name`` or is one of these."""
    code = compile(source, filename, "exec")
    steps = list(dis.get_instructions(code))
    return code, next(step.offset for step in steps if name in step.opname)


@pytest.mark.parametrize(("is_blocked", "waits", "called"), [(True, "float", "float"), (False, "", PYTHON)])
def test_a_function_reads_a_tensor_only_where_it_gave_up_the_lock(is_blocked, waits, called):
    """A loop around ``float()`` of texts shows there, too, and never gives it up by itself."""
    place = Place(place_in("total += float(loss)", "CALL"), is_blocked=is_blocked)
    found = StackReader(UserCode(PLACES)).location(place)
    assert (found.waits_in, found.called) == (waits, called)


@pytest.mark.parametrize(("is_blocked", "waits"), [(True, "item"), (False, "")])
def test_what_torch_reads_for_a_line_waits_for_the_device(is_blocked, waits):
    of_torch = place_in("self.item().__format__(spec)", "CALL", torch._tensor.__file__)
    place = Place(place_in("print(f'{loss:.3f}')", "FORMAT"), last=of_torch, is_blocked=is_blocked)
    assert StackReader(UserCode(PLACES)).location(place) == Location("train.py", 1, "<module>", waits)


class Alone(LockWatch):
    """Knows from the begin whether other threads of Python are busy."""

    is_alone = True


class Beside(LockWatch):
    """The same, beside a thread of Python that is busy."""

    is_alone = False


@pytest.mark.parametrize(("watch", "waits"), [(Alone, {"bool", ""}), (Beside, {""}), (lambda: None, {""})])
@pytest.mark.skipif(not has_gil(), reason="nothing is handed over without the GIL")
def test_a_condition_that_waits_is_known_from_one_in_python(clock, watch, waits):
    """``slow`` gives up the lock for milliseconds, as a tensor of a device does, and the loop of texts never does."""
    closed = threading.Lock()
    closed.acquire()
    slow = type("Slow", (), {"__bool__": staticmethod(partial(closed.acquire, True, 0.004))})()
    sampler = LineSampler(
        clock, FaultGuard().run, places_of_this_process, watch=watch, new_stop=implementation_of("C").new_stop
    )
    sampler.start(500, clock())
    try:
        while sampler.samples < 60:
            if slow:
                raise AssertionError
            sum(float(text) for text in ["1.5"] * 20_000)
    finally:
        sampler.close()
    found = {location.waits_in for _, location in sampler.pop_samples() if location is not None}
    assert found == waits
