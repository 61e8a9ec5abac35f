"""The example of the guide, all sections manual: inference adds nothing to it."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.nn import functional as F
from torch.utils.data import DataLoader

from training_profiler import (
    profile_dataloader,
    profile_epoch,
    profile_phase,
    profile_section,
    profile_step,
    start_training_profiling,
)

count = counts("optimizer_step", "validation_epoch", "validation_epoch/forward_pass", "checkpointing")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader, val_loader = DataLoader(examples(40), batch_size=8, shuffle=True), DataLoader(examples(16), batch_size=8)


@profile_section("checkpointing")
def save():
    torch.save(model.state_dict(), "model.pt")


start_training_profiling(log_every=100)
for epoch in range(2):
    with profile_epoch(epoch):
        for inputs, targets in profile_dataloader(loader):
            with profile_section("forward_pass"):
                loss = F.cross_entropy(model(inputs), targets)
            with profile_section("backward_pass"):
                loss.backward()
            with profile_section("optimizer_step"):
                optimizer.step()
                optimizer.zero_grad()
            count["optimizer_step"] += 1
            profile_step()
            count.update(STEP)
            show(loss)
        with profile_phase("validation"), torch.no_grad():
            for inputs, targets in val_loader:
                with profile_section("forward_pass"):
                    show(F.cross_entropy(model(inputs), targets))
                count["validation_epoch/forward_pass"] += 1
        count["validation_epoch"] += 1
        save()
        count["checkpointing"] += 1
truth(count)
