"""Closes descriptors that it did not open, as daemons do, and then opens files of its own.

Arguments: the first descriptor to close, and the one after the last.
"""

import fcntl
import os
import sys
import time

import training_profiler as tp

FIRST, END = map(int, sys.argv[1:])
OURS = 500  # the lowest number that the profiler uses
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
os.closerange(FIRST, END)
theirs = [os.open(f"theirs{number}", os.O_RDWR | os.O_CREAT) for number in range(FILES)]
for descriptor in theirs:
    os.write(descriptor, TEXT)
high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, OURS) for descriptor in theirs] if END > OURS else []
steps(20)
tp.snapshot()
steps(20)
tp.stop_training_profiling()
for descriptor in high:
    os.close(descriptor)  # fails if the profiler has closed it
for descriptor in theirs:
    os.write(descriptor, TEXT)
    os.close(descriptor)  # fails if the profiler has closed it
