import threading

from training_profiler.sampling.thread_stacks import read_stacks


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
