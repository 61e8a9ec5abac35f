"""Detection of calls that wait for the device."""

import dis

import pytest

from training_profiler.sampling.location import waits_in


def calls_of(source: str) -> list[str]:
    """Return the name of each waiting call in ``source``."""
    code = compile(source, "train.py", "exec")
    calls = [step.offset for step in dis.get_instructions(code) if step.opname == "CALL"]
    return [name for offset in calls if (name := waits_in(code, offset))]


@pytest.mark.parametrize("name", ["item", "cpu", "tolist", "numpy", "synchronize"])
def test_a_call_that_waits_is_known_by_its_method(name):
    assert calls_of(f"total += loss.{name}()") == [name]


@pytest.mark.parametrize("source", ["loss.backward()", "item()", "loss.item", "table.item(3)", "f(loss)", "item = 1"])
def test_other_calls_do_not_wait(source):
    assert calls_of(source) == []


def test_only_the_call_itself_waits():
    assert calls_of("log(float(loss.item()), step())") == ["item"]


def test_names_beyond_the_first_256_are_found():
    many = "\n".join(f"name_{i} = {i}" for i in range(300))
    assert calls_of(f"{many}\nloss.item()") == ["item"]


@pytest.mark.parametrize("offset", [-2, 0, 10_000])
def test_other_instructions_do_not_wait(offset):
    assert waits_in(compile("loss.item()", "train.py", "exec"), offset) == ""
