"""Work on two streams, in sections on both, and on other devices if there are any; a fork in between.

Prints the exit status of the forked child.
"""

import json
import os

import torch

from training_profiler import profile_section, profile_step, start_training_profiling

start_training_profiling(log_every=1_000_000)
kind = torch.accelerator.current_accelerator().type
module = torch.get_device_module(kind)
side = module.Stream()
one, other = torch.randn(2048, 2048, device=kind), torch.randn(2048, 2048, device=kind)
module.synchronize()
for number in range(30):
    with profile_section("compute"):
        one = one @ one / 2048
    with module.stream(side), profile_section("beside"):
        other = other @ other / 2048
    for index in range(1, module.device_count()):
        with profile_section("another device"):
            module.set_device(index)
            torch.zeros(8, device=f"{kind}:{index}").add_(1)
        module.set_device(0)
    profile_step()
    if number == 20:
        child = os.fork()
        if not child:
            with profile_section("in the child"):
                pass
            raise SystemExit(0)  # by the interpreter's end, which frees what is left
        status = os.waitpid(child, 0)[1]
module.synchronize()
print(json.dumps(status))
