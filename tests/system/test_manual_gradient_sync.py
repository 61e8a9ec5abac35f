"""Gradient synchronization of DDP in a training with manual sections."""

from pathlib import Path

import pytest

from tests.system.scripts import ORDERS, run, run_forked

SCRIPT = """
{imports}
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
distributed.barrier()
for _ in range(12):
    with profile_section("forward_pass"):
        loss = model(torch.ones(8, 64)).pow(2).mean()
    with profile_section({backward!r}):
        loss.backward()
    with profile_section("optimizer_step"):
        optimizer.step()
        optimizer.zero_grad()
    profile_step()
    print(loss.item().hex())
api = __import__("training_profiler.api").api if is_profiling_enabled() else None
sync_points = api._process.instrumentation.context.sync_points.kept if api else []
stop_training_profiling()
print([key for key, _, _ in sync_points][:3])
print(distributed.barrier.__code__.co_filename.rpartition("/")[2])
distributed.destroy_process_group()
"""
VARIABLES = {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize("order", ["before torch", pytest.param("after torch", marks=pytest.mark.programs)])
def test_gradient_sync_is_part_of_backward_and_losses_are_unchanged(tmp_path: Path, order: str) -> None:
    script = SCRIPT.format(imports=ORDERS[order], backward="backward_pass")
    (tmp_path / "off").mkdir()
    off = run_forked(tmp_path / "off", script, profile="0", variables=VARIABLES)
    starts = run if order == "before torch" else run_forked
    outcome = starts(tmp_path, script, variables=VARIABLES)
    assert (outcome.status, off.status) == (0, 0), outcome.stderr + off.stderr
    wanted = off.stdout.splitlines()[:12]
    assert [line for line in outcome.stdout.splitlines() if line in wanted] == wanted
    sections = outcome.report["sections"]
    assert sections["synchronization"]["count"] == 11  # DDP reports the last one in the next forward pass
    assert sections["synchronization"]["parent"] == "backward_pass"
    assert sections["synchronization"]["self_s"] > 0
    assert sum(section["self_s"] for section in sections.values()) == pytest.approx(outcome.report["wall_s"], abs=1e-6)
    assert "['all:0', 'ddp0:1', 'ddp0:2']" in outcome.stdout
    assert off.stdout.splitlines()[-1] == outcome.stdout.splitlines()[-1] == "c10d_logger.py"  # the patch is removed
    assert outcome.report["health"]["disabled"] == []


def test_gradient_sync_is_part_of_the_inferred_backward_pass_in_a_section_of_the_users(tmp_path: Path) -> None:
    outcome = run_forked(tmp_path, SCRIPT.format(imports=ORDERS["after torch"], backward="learn"), variables=VARIABLES)
    assert outcome.status == 0, outcome.stderr
    sections = outcome.report["sections"]
    assert (sections["synchronization"]["count"], sections["synchronization"]["parent"]) == (11, "backward_pass")
    assert (sections["backward_pass"]["count"], sections["backward_pass"]["parent"]) == (12, "learn")
