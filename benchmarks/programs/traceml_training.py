"""The training of ``plain_training`` with what TraceML's quickstart asks for in a loop of one's own."""

import sys

import torch
import traceml_ai as traceml
from torch import nn

from benchmarks.programs.plain_training import make
from benchmarks.turns import Turns


def main(size: str, batch: int, block_steps: int) -> None:
    traceml.init(mode="auto")
    turns = Turns(block_steps)
    model, loader = make(size, batch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    criterion = nn.CrossEntropyLoss()
    while True:
        for words, labels in loader:
            with traceml.trace_step(model):
                optimizer.zero_grad()
                loss = criterion(model(words), labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if not turns.after_step():
                print(f"loss {loss.item():.4f}")
                return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
