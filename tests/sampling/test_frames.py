"""Reading the frames of all threads neither locks up the interpreter nor changes how it collects garbage."""

import gc
import subprocess
import sys
import threading

import pytest

from training_profiler.sampling.frames import current_frames

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


def test_garbage_that_needs_the_interpreters_lock_does_not_lock_it_up():
    done = subprocess.run([sys.executable, "-c", LITTER], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("came to its end True\n", "")


def test_the_frame_of_the_calling_thread_is_there():
    assert current_frames()[threading.get_ident()].f_code.co_name == "current_frames"


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collecting_goes_on_or_stays_off_as_before(is_enabled):
    (gc.enable if is_enabled else gc.disable)()
    try:
        current_frames()
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()
