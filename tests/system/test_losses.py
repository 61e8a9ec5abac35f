"""Profiling leaves every loss unchanged."""

from pathlib import Path

from tests.system.scripts import run_forked


def test_losses_are_bit_for_bit_the_same_on_and_off(tmp_path: Path) -> None:
    script = """
        import random
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from training_profiler import *
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8, shuffle=True)
        start_training_profiling(log_every=3, stream="stderr")
        for epoch in range(3):
            with profile_epoch(epoch):
                for inputs, targets in profile_dataloader(data, name="train"):
                    with profile_section("forward_pass"):
                        loss = (model(inputs) - targets).square().mean()
                    with profile_section("backward_pass"):
                        loss.backward()
                    with profile_section("optimizer_step"):
                        optimizer.step()
                        optimizer.zero_grad()
                    print(loss.item().hex())
                    profile_step()
        print(random.random() > 1, torch.rand(()).item().hex())
    """
    on, off = run_forked(tmp_path, script), run_forked(tmp_path, script, profile=None)
    assert (on.status, off.status, off.stderr) == (0, 0, "")
    assert len(off.stdout.splitlines()) == 25
    assert on.stdout == off.stdout
    assert "Final Profiling Summary (24 steps)" in on.stderr
