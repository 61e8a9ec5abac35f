"""A log of all steps is written again after each one; or (fixed) a line is added; or (short) it has the last steps."""

import json
import sys
import time

import torch
from torch import nn

STEPS = 800


def main(*arguments: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: list[dict[str, float]] = []
    written_s, began_s = 0.0, time.perf_counter()
    for step in range(STEPS):
        loss = model(torch.randn(256, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        row = {f"metric {number}": step * 1.1 + number for number in range(20)}
        row["loss"] = loss.item()
        before_s = time.perf_counter()
        history.append(row)
        if "short" in arguments:
            del history[:-20]
        if "fixed" in arguments:
            with open("log.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
        else:
            with open("log.json", "w") as file:
                json.dump(history, file)
        written_s += time.perf_counter() - before_s
    print("TRUTH", json.dumps({"written": written_s / (time.perf_counter() - began_s)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
