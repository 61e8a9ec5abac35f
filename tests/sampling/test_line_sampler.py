"""The sampler thread: its samples of another thread, and its end."""

import dis
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import NamedTuple

import pytest

from tests.support.golden import assert_answers
from tests.support.recording import FakeClock
from training_profiler.model.lines import PARAMETERS
from training_profiler.model.location import Location
from training_profiler.model.snapshot import PYTHON
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.sampling import line_sampler, stacks
from training_profiler.sampling.line_sampler import LineSampler, has_gil
from training_profiler.sampling.stacks import StackReader
from training_profiler.sampling.user_code import Places, UserCode, function_name

PLACES = Places("/project/train.py", "/project", ("/usr/lib/python3.11",), ("/usr/lib/python3.11",))
SITE = "/usr/lib/python3.11/site-packages"
PROGRAM = """\
def main():

    return train()

def train():
    return library(step)

def step():
    return [look() for _ in range(1)][0]
"""
LIBRARY = """\
def library(function):
    return function()
def look():
    return frame()
"""


class KeptFrame(NamedTuple):
    f_code: CodeType
    f_lasti: int
    f_back: "KeptFrame | None" = None


@pytest.fixture
def sampler(clock: FakeClock):
    sampler = LineSampler(clock, FaultGuard().run, lambda: PLACES)
    yield sampler
    sampler.close()


def started(sampler: LineSampler, hz: int = 1000) -> LineSampler:
    sampler.start(hz, sampler._clock())
    return sampler


def located(sampler: LineSampler, frame) -> Location | None:
    place = sampler._place(sampler._stacks, frame)
    return None if place is None else sampler._stacks.location(place)


def wait_for_samples(sampler: LineSampler, count: int) -> None:
    while sampler.samples < count:
        sum(range(1000))


def run_as(filename: str, text: str, names: dict) -> dict:
    exec(compile(text, filename, "exec"), names)
    return names


def test_a_sample_is_the_innermost_line_of_the_users_code(sampler):
    """At ``look``, called by a library, called by the program, which another library calls."""
    started(sampler).close()
    names = run_as(f"{SITE}/library.py", LIBRARY, {"frame": lambda: sys._getframe(1)})
    frame = run_as("/project/train.py", PROGRAM, names)["main"]()
    assert located(sampler, frame) == Location("train.py", 9, "step", inside="library.py:4 look")


@pytest.mark.parametrize(("call", "called"), [("math.sin(x)", PYTHON), ("len(x)", PYTHON), ("copy(x)", "copy")])
def test_a_loop_around_a_short_function_runs_python(sampler, call, called):
    """Another thread sees the loop only after the call, which itself takes no time."""
    started(sampler).close()
    code = compile(f"def sums(xs):\n    for x in xs:\n        {call}", "/project/train.py", "exec").co_consts[0]
    at = next(step.offset for step in dis.get_instructions(code) if step.opname == "CALL")
    assert located(sampler, KeptFrame(code, at)).called == called


@pytest.mark.parametrize(
    ("over", "body", "is_one"),
    [
        ("slow, p in zip(m.parameters(),\n m.parameters())", "slow.copy_(d * slow + (1 - d) * p)", True),
        ("slow, p in zip(m.parameters(), m.parameters())", "slow.data = d * slow.data + (1 - d) * p", True),
        ("k, v in m.state_dict().items()", "v *= d", True),
        ("k, p in m.named_parameters()", "kept[k] = d * kept[k] + (1 - d) * p", True),
        ("p in group['params']", "p.grad.mul_(scale)", True),
        ("k, p in m.named_parameters()", "norms[k] = (p.grad ** 2).mean().item()", False),
        ("p in m.parameters()", "penalty = penalty + (p * p).sum()", False),
        ("p in m.parameters()", "p.requires_grad_(False)", False),
        ("p in m.parameters()", "p.grad = None", False),
        ("p in m.parameters()", "p.data = p.data @ rotation", False),
        ("p in m.parameters()", "for i in range(3): kept[i] = p * i", False),
        ("x in loader", "x.mul_(scale)", False),
    ],
)
def test_a_loop_that_changes_parameters_one_by_one_is_known(sampler, over, body, is_one):
    started(sampler).close()
    program = f"def step(m, d, kept, group, scale):\n    for {over}:\n        {body}"
    code = compile(program, "/project/train.py", "exec").co_consts[0]
    at = next(step.offset for step in dis.get_instructions(code) if step.opname == "JUMP_BACKWARD")
    assert located(sampler, KeptFrame(code, at)).called == (PARAMETERS if is_one else PYTHON)


def test_a_builtin_that_runs_a_library_is_named(sampler):
    started(sampler).close()
    program = compile("list(loader)", "/project/train.py", "exec")
    at = next(step.offset for step in dis.get_instructions(program) if step.opname == "CALL")
    library = compile(LIBRARY, f"{SITE}/library.py", "exec")
    assert located(sampler, KeptFrame(library, 0, KeptFrame(program, at))).called == "list"


def test_stack_without_user_code_has_no_line(sampler):
    started(sampler).close()
    frame = run_as(f"{SITE}/library.py", LIBRARY, {"frame": lambda: sys._getframe(1)})["look"]()
    sampler._stacks = StackReader(UserCode(Places("/elsewhere/train.py", "/", ("/",), ())))
    assert located(sampler, frame) is None


@pytest.mark.parametrize(
    ("module", "is_ours"),
    [
        ("instrumentation/loop_detection/loop_detector", True),
        ("runtime/session", True),
        ("instrumentation/patches/transfer", False),  # calls Tensor.to, which is in C
        ("recording/timed_function", False),
        ("api", False),
    ],
)
def test_what_the_profiler_itself_takes_has_no_line_of_the_program(module, is_ours):
    own = str(Path(stacks.__file__).parents[1])
    users = KeptFrame(compile("step()", "/project/train.py", "exec"), 0)
    frame = KeptFrame(compile("pass", f"{own}/{module}.py", "exec"), 0, users)
    reader = StackReader(UserCode(replace(PLACES, never=(own,))))
    assert reader.is_ours(frame) is is_ours
    assert reader.place(frame).users[0].co_filename == "/project/train.py"


@pytest.mark.parametrize(("module", "samples"), [("inspections/same_again", 0), ("inspections/flop_counter", 1)])
def test_a_sample_of_the_profiler_itself_counts_for_no_line(sampler, module, samples):
    started(sampler).close()
    own = str(Path(stacks.__file__).parents[1])
    users = KeptFrame(compile("step()", "/project/train.py", "exec"), 0)
    sampler.samples, sampler._waiting = 0, []
    sampler._stacks = StackReader(UserCode(replace(PLACES, never=(own,))))
    frame = KeptFrame(compile("pass", f"{own}/{module}.py", "exec"), 0, users)
    sampler._sampled = SimpleNamespace(frame=lambda: frame, ident=0)
    sampler._sample()
    assert (sampler.samples, len(sampler.pop_samples())) == (samples, samples)


def test_generated_dataclass_method_belongs_to_its_calling_line(sampler):
    started(sampler).close()
    users = KeptFrame(compile("Batch(1)", "/project/train.py", "exec"), 0)
    generated = compile("def __init__(self): pass", "<string>", "exec").co_consts[0]
    assert located(sampler, KeptFrame(generated, 0, users)).function == "<module>"


def test_functions_go_by_their_class_and_comprehensions_by_the_function_around_them():
    assert_answers("functions", lambda name: function_name((lambda: 0).__code__.replace(co_qualname=name)))


def test_sampled_thread_can_be_changed(sampler, clock):
    started(sampler)
    wait_for_samples(sampler, 2)
    is_over = threading.Event()

    def train_elsewhere():
        sampler.sample_this_thread()
        wait_for_samples(sampler, sampler.samples + 3)
        is_over.set()

    thread = threading.Thread(target=train_elsewhere)
    thread.start()
    is_over.wait()
    sampler.close()
    thread.join()
    functions = {location.function for _, location in sampler.pop_samples() if location}
    assert "wait_for_samples" in functions
    assert "test_sampled_thread_can_be_changed" not in functions


def test_another_rate_needs_no_other_thread_and_zero_none(sampler):
    before = threading.enumerate()
    sampler.start(0, 0)
    assert threading.enumerate() == before
    assert sampler.cost() is None
    started(sampler, 1000)
    thread = sampler._thread
    sampler.start(500, 0)
    assert sampler._thread is thread
    sampler.start(0, 0)
    assert not thread.is_alive()


def test_time_before_sampling_has_no_line(sampler, clock):
    begin_ns = clock()
    clock.advance(2)
    sampler.start(50, begin_ns)
    sampler.close()
    unseen = sampler.pop_samples()[:100]
    assert unseen == [(begin_ns + i * 20_000_000, None) for i in range(100)]


def test_waiting_samples_are_bounded(sampler, monkeypatch):
    monkeypatch.setattr(line_sampler, "MOST_WAITING", 5)
    wait_for_samples(started(sampler), 5)
    for _ in range(20):
        sampler._sample()
    sampler.close()
    assert len(sampler.pop_samples()) == 5


def test_lines_are_bounded(sampler, monkeypatch):
    started(sampler).close()
    monkeypatch.setattr(stacks, "MOST_LOCATIONS", 0)
    sampler._stacks._locations.clear()
    assert located(sampler, sys._getframe()) is None


def test_a_thread_that_has_ended_has_no_lines(sampler):
    started(sampler).close()
    sampler.pop_samples()
    before = sampler.samples
    thread = threading.Thread(target=sampler.sample_this_thread)
    thread.start()
    thread.join()
    sampler._sample()
    assert sampler.samples == before


def test_cost_is_reported_with_the_number_of_samples(sampler):
    started(sampler).close()
    sampler.samples, sampler._ended_cpu_ns = 1234, 41_000_000
    without = "; without the C recorder, Python code between short operators is attributed to the following one"
    assert sampler.cost() == "line sampler: 1234 samples, 41.0 ms of CPU" + without * has_gil()
