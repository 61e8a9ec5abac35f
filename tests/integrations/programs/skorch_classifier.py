"""A skorch classifier: forward and backward run in a closure inside ``optimizer.step``; every epoch is validated."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from tally import Classifier, Points, Tally, updates

torch.manual_seed(0)
np.random.seed(0)
tally = Tally()


class Report(Callback):  # type: ignore[misc]
    """Counts backwards, and prints the losses of an epoch."""

    def on_grad_computed(self, *_: object, **__: object) -> None:
        tally.backward()

    def on_epoch_end(self, net: NeuralNetClassifier, **_: object) -> None:
        print("epoch", *[batch["train_loss"].hex() for batch in net.history[-1, "batches"] if "train_loss" in batch])


points = Points(120)
net = NeuralNetClassifier(
    Classifier,
    module__tally=tally,
    criterion=torch.nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=1e-2,
    batch_size=16,
    max_epochs=3,
    iterator_train__shuffle=True,
    iterator_train__collate_fn=tally.collate,
    iterator_valid__collate_fn=tally.collate_for_evaluation,
    callbacks=[("report", Report())],
    verbose=0,
)
net.fit(points.inputs.numpy(), points.targets.numpy())
tally.steps = updates(net.optimizer_)
print("accuracy", net.score(points.inputs.numpy(), points.targets.numpy()))
tally.print()
