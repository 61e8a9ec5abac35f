"""A step captured in a graph, inside sections, and replayed; prints the result."""

import json

import torch

from training_profiler import profile_section, profile_step, start_training_profiling
from training_profiler.device import device_time

device_time.SHARE = 1.0
start_training_profiling(log_every=1_000_000)
kind = torch.accelerator.current_accelerator().type
weight = torch.ones(256, 256, device=kind)
static, result = torch.ones(256, device=kind), torch.zeros(256, device=kind)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(3):
        with profile_section("forward_pass"):
            result.copy_(weight @ static)
        profile_step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with profile_section("capturing"), torch.cuda.graph(graph):
    for _ in range(500):  # enough sections for several drains
        with profile_section("captured"):
            pass
    with profile_section("captured"):
        result.copy_(weight @ static)
for number in range(20):
    with profile_section("replay"):
        static.fill_(number)
        graph.replay()
    profile_step()
torch.cuda.synchronize()
print(json.dumps(result[0].item()))
