"""Ignite's supervised trainer, which accumulates over two batches, with an evaluator and a checkpoint an epoch."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import ModelCheckpoint
from ignite.metrics import Accuracy, Loss
from tally import Classifier, Points, Tally, updates
from torch.utils.data import DataLoader

torch.manual_seed(0)
tally = Tally()
model = Classifier(tally)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = torch.nn.CrossEntropyLoss()
loader = DataLoader(Points(96), batch_size=8, shuffle=True, collate_fn=tally.collate)
held_out = DataLoader(Points(40, seed=1), batch_size=8, collate_fn=tally.collate_for_evaluation)

trainer = create_supervised_trainer(
    model,
    optimizer,
    lambda outputs, targets: tally.watch(criterion(outputs, targets)),
    gradient_accumulation_steps=2,
)
evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy(), "loss": Loss(criterion)})


@trainer.on(Events.ITERATION_COMPLETED)
def print_loss(engine) -> None:
    print(f"loss {float(engine.state.output).hex()}")


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine) -> None:
    evaluator.run(held_out)
    print(f"epoch {engine.state.epoch}", *[value.hex() for value in evaluator.state.metrics.values()])


trainer.add_event_handler(Events.EPOCH_COMPLETED, ModelCheckpoint("checkpoints", "net"), {"model": model})
trainer.run(loader, max_epochs=3)
tally.steps = trainer.state.iteration // 2
assert tally.steps == updates(optimizer)
tally.print()
