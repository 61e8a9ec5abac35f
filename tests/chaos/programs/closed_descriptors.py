"""Closes descriptors that it did not open, as daemons do, and then opens files of its own.

Arguments: the first descriptor to close.
"""

import os
import sys
import time

import training_profiler as tp

FIRST = int(sys.argv[1])
FILES = 40
TEXT = b"of the program\n"


def steps(number):
    for _ in range(number):
        with tp.profile_section("forward_pass"):
            time.sleep(0.001)
        tp.profile_step()


tp.start_training_profiling(log_every=3, flush_s=0.02, sinks="jsonl,csv")
steps(20)
tp.snapshot()
os.closerange(FIRST, 256)
theirs = [os.open(f"theirs{number}", os.O_RDWR | os.O_CREAT) for number in range(FILES)]
for descriptor in theirs:
    os.write(descriptor, TEXT)
steps(20)
tp.snapshot()
steps(20)
tp.stop_training_profiling()
for descriptor in theirs:
    os.write(descriptor, TEXT)
    os.close(descriptor)  # fails if the profiler has closed it
