"""The profiler listens on nothing: sockets of a training are the same off and on, alone and with two ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.neighbours import reported_steps
from tests.support.ports import free_port
from tests.system.launching import through_run
from tests.system.scripts import TIMEOUT_S, environment

pytestmark = pytest.mark.chaos

# With trackers, captures and all samplers on. Prints the kinds of listening sockets of the process and its children.
LISTENS = """
import os, psutil, torch
import torch.distributed as dist
from torch import nn
if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = nn.Linear(4, 1)
if "RANK" in os.environ:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
def listening():
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        for connection in process.net_connections("all"):
            is_bound = connection.type.name == "SOCK_DGRAM" and connection.laddr
            if connection.status == psutil.CONN_LISTEN or is_bound:
                yield f"{connection.family.name} {connection.type.name}"
print("listens", sorted(listening()), flush=True)
if "RANK" in os.environ:
    dist.barrier()
    import time; time.sleep(0.2)  # gloo can lock up where its group goes right after a collective
    dist.destroy_process_group()
"""


def outputs(cwd: Path, ranks: int, is_on: bool) -> list[str]:
    script = cwd / "script.py"
    script.write_text(LISTENS)
    words = through_run(str(script)) if is_on else [sys.executable, str(script)]
    everything = {"SINKS": "jsonl,csv", "CAPTURE": "steps=20-22", "STREAM": "stderr", "MONITOR_S": "0.1"}
    variables = {f"RECTIFIED_FLOW_PROFILE_{name}": value for name, value in everything.items()} if is_on else {}
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            words,
            cwd=cwd,
            env=environment(None, **variables, **({**group, "RANK": str(rank)} if ranks > 1 else {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ended = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, ended
    return [stdout for stdout, _ in ended]


@pytest.mark.parametrize("ranks", [1, 2])
def test_profiler_listens_on_no_socket(tmp_path: Path, ranks: int) -> None:
    off, on = (outputs(tmp_path, ranks, is_on) for is_on in (False, True))
    assert all(stdout.startswith("listens [") for stdout in off)
    assert on == off
    if ranks == 1:
        assert off == ["listens []\n"]
    assert reported_steps(tmp_path) == 40
