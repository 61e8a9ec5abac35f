"""Reading the stacks of other threads neither locks up nor crashes Python, and garbage is collected as before."""

import gc
import subprocess
import sys
import threading
import weakref
from types import FrameType

import pytest

from training_profiler.sampling.frames import StackOfThread, current_frames

# What is collected needs the lock that is held while frames are read; without care this stands still within a second.
LITTER = """
import gc, threading, time
from training_profiler.sampling.frames import current_frames

class Node:
    pass

def litter():
    for _ in range(20):
        one = Node()
        one.me, one.local = one, threading.local()
        one.local.x = 1

def sample():
    while not done:
        litter()
        current_frames()

gc.set_threshold(5)
done = False
thread = threading.Thread(target=sample)
thread.start()
for _ in range(20_000):
    litter()
done = True
thread.join()
print("came to its end", gc.isenabled())
"""

# Functions with other numbers of variables take each other's places in memory. Garbage whose end runs Python code has
# threads switch during a collection. Without care this crashes within three seconds.
CHANGING_STACK = """
import gc, random, sys, threading
from training_profiler.sampling.frames import StackOfThread

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        for i in range(200):
            pass

functions = []
names = {"functions": functions, "pick": random.randrange}
for count in range(24):
    variables = "".join(f"v{i}, " for i in range(count + 1))
    exec(f"def f(o, n):\\n {variables} = (o,) * {count + 1}\\n return functions[pick(24)](o, n - 1) if n else 0", names)
    functions.append(names["f"])

def litter():
    while not done:
        Cycle()
        for i in range(1000):
            pass

def walk():
    global done
    stack = StackOfThread(threading.main_thread().ident)
    try:
        for _ in range(6000):
            frame, depth = stack.frame(), 0
            while frame is not None:
                assert type(frame.f_code.co_name) is str
                frame, depth = frame.f_back, depth + 1
            deepest.append(depth)
            naps.wait(0.0002)
    finally:
        done = True

sys.setswitchinterval(0.0001)
done, deepest, naps = False, [], threading.Event()
for work in (litter, walk):
    threading.Thread(target=work, daemon=True).start()
while not done:
    functions[0](Cycle(), 30)
print(max(deepest) > 25)
"""


def run(program: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    return done.stdout, done.stderr


def test_garbage_that_needs_the_interpreters_lock_does_not_lock_it_up():
    assert run(LITTER) == ("came to its end True\n", "")


def test_a_stack_that_changes_while_garbage_is_collected_crashes_nothing():
    assert run(CHANGING_STACK) == ("True\n", "")


def depth_of(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def test_no_frame_is_kept():
    class Tensor:
        pass

    def work() -> None:
        for _ in range(3):
            step()

    def step() -> None:
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        is_in_step.release()
        is_read.acquire()

    tensors: list[weakref.ref[Tensor]] = []
    is_in_step, is_read = threading.Semaphore(0), threading.Semaphore(0)
    thread = threading.Thread(target=work)
    thread.start()
    assert thread.ident is not None
    stack = StackOfThread(thread.ident)
    for _ in range(3):
        is_in_step.acquire()
        depth_of(stack.frame())
        is_read.release()
    thread.join()
    assert [tensor() for tensor in tensors] == [None, None, None]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collecting_goes_on_or_stays_off_as_before(is_enabled):
    (gc.enable if is_enabled else gc.disable)()
    try:
        assert current_frames()[threading.get_ident()].f_code.co_name != ""
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
