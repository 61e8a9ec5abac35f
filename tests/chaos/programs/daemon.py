"""Becomes a daemon the classic way, before or after its run began, and trains; files of its own get low numbers.

Arguments: "before" or "after".
"""

import os
import sys
import time
from pathlib import Path

WHEN = sys.argv[1]
TEXT = b"of the program\n"


def steps(number):
    for _ in range(number):
        with tp.profile_section("forward_pass"):
            time.sleep(0.001)
        tp.profile_step()


def become_daemon():
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 1024)


if WHEN == "after":
    import training_profiler as tp

    tp.start_training_profiling(flush_s=0.02)
    steps(5)
become_daemon()
theirs = [os.open(f"theirs{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
for descriptor in theirs:
    os.write(descriptor, TEXT)
if WHEN == "before":
    import training_profiler as tp

    tp.start_training_profiling(flush_s=0.02)
steps(30)
tp.snapshot()
tp.stop_training_profiling()
for descriptor in theirs:
    os.write(descriptor, TEXT)
    os.close(descriptor)
Path("done.part").write_text("done")
os.replace("done.part", "done")
