import os
import signal
import subprocess
import sys
import threading

import pytest

from training_profiler.sampling.thread_stacks import free_signal, is_stopped, parse_dump, read_stacks, stacks_by_signal

# Holds the GIL in C on the main thread, as a driver that hangs; the program uses faulthandler itself.
PROGRAM = """
import ctypes, faulthandler, sys, threading
from training_profiler.sampling.thread_stacks import StackSignal
faulthandler.dump_traceback_later(600)
def watch():
    watcher = StackSignal()
    watcher.open()
    ready.set()
    threading.Event().wait()
def hangs_in_c():
    sleep = ctypes.PyDLL(None).sleep  # found in Python, which would be on the stack
    print("hangs", flush=True)
    print("slept", sleep(1), flush=True)
ready = threading.Event()
threading.Thread(target=watch, daemon=True).start()
ready.wait()
hangs_in_c()
"""


@pytest.fixture
def started():
    processes = []

    def start(text):
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "hangs\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def test_process_that_holds_the_gil_in_c_shows_its_stacks_and_is_not_interrupted(started):
    process = started(PROGRAM)
    dump = stacks_by_signal(process.pid)
    *_, main = parse_dump(dump)
    assert [function for _, _, function in main] == ["<module>", "hangs_in_c"]
    assert stacks_by_signal(process.pid) is not None  # also a second time
    assert process.stdout.readline() == "slept 0\n"  # the signal would have cut it short


STOPPED_CATCHING = """
import os, signal, threading, time
number = signal.SIGRTMAX - 8
os.memfd_create(f"training_profiler stacks {number} {threading.get_native_id()}")
print("hangs", flush=True)
time.sleep(600)
"""  # as after os.exec, had the file survived it


@pytest.mark.parametrize("text", ["import time; print('hangs', flush=True); time.sleep(600)", STOPPED_CATCHING])
def test_process_without_our_file_or_that_stopped_catching_the_signal_gets_none(started, text):
    process = started(text)
    assert stacks_by_signal(process.pid) is None
    assert process.poll() is None


def test_signal_that_the_program_uses_is_not_taken():
    first = free_signal()
    before = signal.signal(first, lambda *_: None)
    try:
        assert free_signal() not in (None, first)
    finally:
        signal.signal(first, before)


def test_stopped_process_is_recognized(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (py) thon) T 1 7")
    assert is_stopped(7, tmp_path)
    assert not is_stopped(8, tmp_path)
    assert not is_stopped(os.getpid())


def waiting(started, end):
    started.set()
    end.wait()


def test_each_thread_has_its_name_and_frames_outermost_first():
    started, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=waiting, args=(started, end), name="user's")
    thread.start()
    started.wait()
    try:
        stacks = read_stacks()
    finally:
        end.set()
        thread.join()
    name, frames = stacks[thread.ident]
    users = [frame.function for frame in frames if frame.is_users]
    assert (name, users) == ("user's", ["waiting"])
    assert frames[0].file == "threading.py"
    own_name, own = stacks[threading.get_ident()]
    assert (own_name, own[-1].function) == ("MainThread", "test_each_thread_has_its_name_and_frames_outermost_first")
