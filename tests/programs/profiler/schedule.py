"""torch.profiler on a schedule, its trace handed to a function in the middle of the training."""

import torch
from _tiny import truth
from _train import train
from torch.profiler import ProfilerActivity, profile, schedule


def ready(prof):
    rows = {event.key: event.count for event in prof.key_averages()}
    print("window", {key: rows[key] for key in sorted(rows) if "#" in key or key.startswith("aten::")})


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready
) as prof:
    count = train(each=lambda step: prof.step())
print(torch.autograd.profiler_util.__name__)
truth(count)
