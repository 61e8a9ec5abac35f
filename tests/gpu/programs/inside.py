"""What NVML's counters say of known work, each for two seconds, and what reading them costs."""

import json
import time

import torch

from training_profiler.sampling.gpu import Gpus

SECONDS, READS = 2.0, 50
device = torch.device("cuda")
half, single = (torch.randn(8192, 8192, device=device, dtype=kind) for kind in (torch.bfloat16, torch.float32))
large, pinned = torch.empty(2**30, dtype=torch.uint8, device=device), torch.empty(2**28, dtype=torch.uint8).pin_memory()
copied = 0


def copy_from_host():
    global copied
    large[: len(pinned)].copy_(pinned, non_blocking=True)
    copied += len(pinned)


WORK = {
    "bfloat16": lambda: half @ half,
    "float32": lambda: single @ single,
    "copy on the device": lambda: large[: 2**29].copy_(large[2**29 :]),
    "copy from the host": copy_from_host,
    "idle": lambda: time.sleep(0.1),
}
torch.backends.cuda.matmul.allow_tf32 = False
gpus = Gpus()
gpus.read(), gpus.read()  # the second one begins to count
counters, found = gpus._counters.get(0), {}
for name, work in WORK.items() if counters is not None else ():
    work()
    torch.cuda.synchronize()
    counters.read()
    copied, end_s = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < end_s:
        for _ in range(4):
            work()
        torch.cuda.synchronize()
    found[name] = counters.read()
    found[name]["copied_bytes_per_s"] = copied / found[name]["counted_s"]
begin_s = time.thread_time()
readings = [gpus.read()[0].values for _ in range(READS)]
cpu_ms = 1e3 * (time.thread_time() - begin_s) / READS
gpus.close()
known = {name: value for values in readings for name, value in values.items()}  # some are read every fifth time
name = torch.cuda.get_device_name()
print(json.dumps({"device": name, "why": gpus.without_counters, "found": found, "cpu_ms": cpu_ms, "known": known}))
