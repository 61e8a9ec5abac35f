"""What a line calls is named from its code alone."""

import dis
import sys
from types import CodeType

import pytest

from training_profiler.sampling.location import called_function, is_short, runs_python


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


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("spy()", "spy"),
        ("spy(1, 2, key=3)", "spy"),
        ("spy(*(1, 2), **{})", "spy"),
        ("copy.deepcopy(loss)", "copy.deepcopy"),
        ("loss.detach().mean().item()", ".item"),
        ("loss.grad.norm(2)", ".norm"),
        ("loss[0].tolist()", ".tolist"),
        ("loss.mean(\n    dim=1,\n).tolist(\n)", ".tolist"),
        ("x = [1, loss.item()]", "loss.item"),
        ("def f(run):\n    return run.log(1)\nf(loss)", "run.log"),
        ("def f():\n    return [copy.dumps(x) for x in (1,)]\nf()", "copy.dumps"),
        ("spy(loss.shape, len('abc'), max(1, 2))", "spy"),
        ("hooks[0]()", ""),
        ("(lambda: spy)()()", ""),
    ],
)
def test_called_function_is_named(source: str, name: str) -> None:
    assert called_function(*calling_code(source)) == name


def test_name_beyond_the_first_256_is_found() -> None:
    many = "\n".join(f"def f{number}(): pass\nf{number}" for number in range(300))
    assert called_function(*calling_code(f"{many}\ncopy.deepcopy()")) == "copy.deepcopy"


def test_an_instruction_that_calls_nothing_has_no_name() -> None:
    code = compile("a = 1\nb = a + a", "train.py", "exec")
    assert {called_function(code, offset) for offset in range(-2, len(code.co_code) + 4)} == {""}


def test_code_without_columns_has_no_name() -> None:
    code, instruction = calling_code("copy.deepcopy(loss)")
    without = code.replace(co_linetable=b"\xe8\x00" * (len(code.co_code) // 2))  # a line each, no columns
    assert called_function(without, instruction) == ""


def test_loops_and_the_begin_of_functions_run_python() -> None:
    code = compile("for x in y:\n    z = x", "train.py", "exec")
    names = {step.opname for step in dis.get_instructions(code) if runs_python(code, step.offset)}
    assert names == {"RESUME", "JUMP_BACKWARD"}
    assert not runs_python(code, -1)
    assert not runs_python(code, 10_000)


@pytest.mark.parametrize("name", ["math.sin", "float", "len", "max", "rows.append", ".items", "isinstance"])
def test_short_functions_of_numbers_and_containers(name: str) -> None:
    assert is_short(name)


@pytest.mark.parametrize("name", ["", "print", "loss.item", "torch.max", "x.add", "queue.get", "np.sum", "next"])
def test_other_functions_are_not_short(name: str) -> None:
    assert not is_short(name)
