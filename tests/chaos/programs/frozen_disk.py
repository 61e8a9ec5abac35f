"""Steps whose run folder is on a disk that stops responding, from a step on or from the start, for a time or for ever.

Arguments: when it freezes ("start" or a step), how long (s), number of steps, file for the result.
"""

import json
import os
import sys
import threading
import time

import training_profiler as tp

FREEZE_AT, FROZEN_S, STEPS, RESULT = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
thawed = threading.Event()
thawed.set()
waited_on = set()  # threads that waited for the disk
runs = os.path.join(os.getcwd(), "runs")


def frozen(call):
    """Wait in ``call`` if it is about the run folder while the disk is frozen."""

    def wrapped(*args, **kwargs):
        if not thawed.is_set() and is_of_run(args[0] if args else None):
            waited_on.add(threading.current_thread().name)
            thawed.wait()
        return call(*args, **kwargs)

    return wrapped


def is_of_run(what):
    try:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.path.abspath(os.fspath(what))
    except (OSError, TypeError, ValueError):
        return False
    return path.startswith(runs)


for name in ("open", "write", "mkdir", "stat", "lstat", "replace", "rename", "unlink", "listdir", "scandir", "fstat"):
    setattr(os, name, frozen(getattr(os, name)))


def freeze():
    thawed.clear()
    timer = threading.Timer(FROZEN_S, thawed.set)
    timer.daemon = True
    timer.start()


if FREEZE_AT == "start":
    freeze()
tp.start_training_profiling(log_every=5, flush_s=0.05, sinks="jsonl")
while_frozen = 0
for step in range(1, STEPS + 1):
    if str(step) == FREEZE_AT:
        freeze()
    with tp.profile_section("forward_pass"):
        time.sleep(0.001)
    with tp.profile_epoch(step) if step % 10 == 0 else tp.profile_section("backward_pass"):
        pass
    tp.profile_step()
    while_frozen += not thawed.is_set()
result = {"while_frozen": while_frozen, "waited_on": sorted(waited_on)}
with open(RESULT, "w", encoding="utf-8") as file:
    json.dump(result, file)
if len(sys.argv) > 5:
    thawed.wait()
