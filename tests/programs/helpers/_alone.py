"""Runs programs one after another without a profiler, each in a fork of this process, which has imported torch for all.

Reads a line of JSON for each, ``[folder, word, ...]``, and answers with the exit status. What the program printed is in
the files ``stdout`` and ``stderr`` beside its folder.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - what takes the time: the first optimizer imports it


def become(folder, words):
    """Run the program ``words`` in ``folder`` and leave the process as Python does at the end of a script."""
    os.chdir(folder)
    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        os.dup2(os.open(f"{folder.parent}/{name}", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv, sys.path[0] = words, os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")


for line in sys.stdin:
    folder, *words = json.loads(line)
    child = os.fork()
    if child == 0:
        become(Path(folder), words)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
