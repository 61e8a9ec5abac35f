"""Keras on torch: it has its own optimizers, and reads a batch to trace its layers before it trains.

That batch and those calls may count as evaluation or not, so only the sum of all batches has a clear truth.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
from tally import Points, Tally
from torch.utils.data import DataLoader

tally = Tally()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


class Report(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        tally.backward()
        print(f"loss {float(logs['loss']).hex()}")


model.fit(
    DataLoader(Points(96), batch_size=8, shuffle=True, collate_fn=tally.collate),
    epochs=2,
    verbose=0,
    callbacks=[Report()],
)
tally.steps = int(model.optimizer.iterations)
assert tally.steps == tally.backward_pass == 24
tally.add("data_loading + validation_epoch/data_loading", tally.data_loading)
tally.print("data_loading", "forward_pass")
