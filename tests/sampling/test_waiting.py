"""Detection of calls that wait for the device."""

import dis
import sys
import threading
from functools import partial
from types import CodeType

import pytest
import torch

from tests.support.golden import assert_answers
from tests.support.recording import implementation_of
from training_profiler.model.location import Location
from training_profiler.model.snapshot import PYTHON
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling.line_sampler import LineSampler, has_gil
from training_profiler.sampling.lock_watch import LockWatch
from training_profiler.sampling.stacks import Place, StackReader
from training_profiler.sampling.user_code import (
    TOKENIZING,
    Places,
    UserCode,
    called_function,
    is_short,
    places_of_this_process,
    reads_number,
    tokenizes,
    waits_in,
)


def calls_of(source: str) -> list[str]:
    """Return the name of each waiting call in ``source``."""
    code = compile(source, "train.py", "exec")
    calls = [step.offset for step in dis.get_instructions(code) if step.opname == "CALL"]
    return [name for offset in calls if (name := waits_in(called_function(code, offset), code, offset))]


def numbers_of(source: str) -> list[str]:
    """Return what reads a number in ``source``, instruction by instruction."""
    code = compile(source, "train.py", "exec")
    offsets = [step.offset for step in dis.get_instructions(code)]
    return [name for offset in offsets if (name := reads_number(code, offset))]


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
    assert StackReader(UserCode(PLACES)).location(place) == Location("train.py", 1, "<module>", waits, called="format")


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


def calling_code(source: str) -> tuple[CodeType, int]:
    """Return the code and instruction of the last call in ``source``."""
    seen: list[tuple[CodeType, int]] = []

    def spy(*_: object, **__: object) -> object:
        frame = sys._getframe(1)
        seen.append((frame.f_code, frame.f_lasti))
        return Spy()

    class Spy:
        """Calls ``spy`` whatever is done with it."""

        def __getattr__(self, _: str) -> object:
            return self

        def __call__(self, *_: object, **__: object) -> object:
            frame = sys._getframe(1)
            seen.append((frame.f_code, frame.f_lasti))
            return self

        def __getitem__(self, _: object) -> object:
            return self

    exec(compile(source, "train.py", "exec"), {"spy": spy, "loss": Spy(), "copy": Spy(), "hooks": [spy]})
    return seen[-1]


def called_in(source: str) -> str:
    return called_function(*calling_code(source.replace("\\n", "\n")))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("waits", lambda source: " ".join(calls_of(source))),
        ("numbers", lambda source: " ".join(sorted(set(numbers_of(source))))),
        ("calls", called_in),
    ],
)
def test_calls_that_wait_or_read_numbers_are_known_and_called_functions_named(name, read):
    assert_answers(name, read)


@pytest.mark.parametrize(
    ("source", "is_it"),
    [
        ("tokenizer.encode(text).ids", True),
        ("[each.ids for each in tokenizer.encode_batch_fast(texts)]", True),
        ("texts.encode()", False),
        ("tokenizer.ids(text)", False),
    ],
)
def test_calls_of_tokenizers_in_rust_are_known(monkeypatch: pytest.MonkeyPatch, source: str, is_it: bool) -> None:
    code = compile(source, "data.py", "exec")
    called = {called_function(code, each.offset) for each in dis.get_instructions(code)}
    monkeypatch.setitem(sys.modules, "tokenizers", sys)
    assert any(tokenizes(name, code) for name in called) is is_it
    monkeypatch.delitem(sys.modules, "tokenizers")
    assert not any(tokenizes(name, code) for name in called)


def test_name_beyond_the_first_256_is_found() -> None:
    many = "\n".join(f"def f{number}(): pass\nf{number}" for number in range(300))
    assert called_function(*calling_code(f"{many}\ncopy.deepcopy()")) == "copy.deepcopy"


def test_an_instruction_that_calls_nothing_has_no_name() -> None:
    code = compile("a = 1\nb = a + a", "train.py", "exec")
    assert {called_function(code, offset) for offset in range(-2, len(code.co_code) + 4)} == {""}


def test_text_with_tensors_in_it_is_formatted() -> None:
    code = compile("a = f'{loss} {weight:.3f}' + str(1)", "train.py", "exec")
    called = [called_function(code, each.offset) for each in dis.get_instructions(code) if "FORMAT" in each.opname]
    assert called == ["format", "format"]


def test_code_without_columns_has_no_name() -> None:
    code, instruction = calling_code("copy.deepcopy(loss)")
    without = code.replace(co_linetable=b"\xe8\x00" * (len(code.co_code) // 2))  # a line each, no columns
    assert called_function(without, instruction) == ""


def test_functions_of_numbers_and_containers_are_short() -> None:
    assert all(map(is_short, ["math.sin", "float", "len", "max", "rows.append", ".items", "isinstance"]))
    assert not any(map(is_short, ["", "print", "loss.item", "torch.max", "x.add", "queue.get", "np.sum", "next"]))
    assert not is_short(TOKENIZING)
