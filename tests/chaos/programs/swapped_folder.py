"""Trains, and puts something else in the place of its run folder meanwhile, as the owner of the folder around it can.

Arguments: what stands there then, and ``close`` to close all descriptors after that, or ``fork`` or ``chdir``. Prints
the losses to a file.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

import training_profiler as tp
from training_profiler.storage.stack_files import write_request

HOW, *MORE = sys.argv[1:]
PATIENCE_S = 120


def until(happens):
    end_s = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < end_s, "nothing came"
        time.sleep(0.01)


def steps(number):
    for _ in range(number):
        with tp.profile_section("forward_pass"):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss).hex())
        tp.profile_step()


torch.manual_seed(0)
model, batch, losses = torch.nn.Linear(8, 8), torch.ones(4, 8), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tp.start_training_profiling(
    log_every=3, flush_s=0.02, sinks=os.environ["SINKS"], capture="steps=40-42,windows=1", html=True
)
steps(20)
tp.snapshot()
(folder,) = Path("runs").absolute().glob("2*")
until(lambda: {"metrics.jsonl", "rank0.jsonl", "meta.json"} <= set(os.listdir(folder)))
steps(3)
aside, theirs = Path("aside").absolute(), Path("theirs").absolute()
if HOW != "nothing":
    folder.rename(aside)
if HOW == "link":
    folder.symlink_to(theirs, target_is_directory=True)
elif HOW == "folder":
    Path("copy").rename(folder)
if "close" in MORE:
    os.closerange(3, 4096)
if "chdir" in MORE:
    os.chdir("/")
if "fork" in MORE and not (child := os.fork()):
    steps(5)
    os._exit(0)
if "fork" in MORE:
    os.waitpid(child, 0)
steps(20)
if HOW != "nothing" and not MORE:
    write_request(aside, time.time_ns())
    until(lambda: (steps(1), (aside / "stacks" / "rank0.json").exists())[1])
steps(20)
tp.stop_training_profiling()
(theirs.parent / "losses").write_text(json.dumps(losses[:60]))
