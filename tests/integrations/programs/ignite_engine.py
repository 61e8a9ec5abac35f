"""A custom Ignite engine: an iteration is a micro-batch, a pass over statistics, or an update with two losses."""

import torch
from ignite.engine import Engine, Events
from tally import Classifier, Points, Tally, updates
from torch.utils.data import DataLoader

torch.manual_seed(0)
tally = Tally()
model = Classifier(tally)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
criterion = torch.nn.CrossEntropyLoss()
seen = torch.zeros(2)


def iterate(engine, batch) -> float | None:
    inputs, targets = batch
    kind = engine.state.iteration % 4
    if kind == 0:  # this batch only teaches the mean of the inputs
        seen.add_(inputs.mean(0))
        return None
    model.train()
    loss = tally.watch(criterion(model(inputs - seen), targets))
    loss.backward()
    if kind == 3:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


trainer = Engine(iterate)


@trainer.on(Events.ITERATION_COMPLETED)
def print_loss(engine) -> None:
    if engine.state.output is not None:
        print(f"loss {engine.state.output.hex()}")


trainer.run(DataLoader(Points(136), batch_size=8, shuffle=True, collate_fn=tally.collate), max_epochs=2)
assert trainer.state.iteration == 34
tally.steps = updates(optimizer)
tally.print()
