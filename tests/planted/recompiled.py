"""A compiled model that torch compiles again: for a counter of its own, sizes (``--sizes``), a list (``--list``).

With ``--fixed`` not. Not alike: two shapes and an evaluation (``--two-shapes``), of which each needs a graph.
``--breaks`` has a line that ends the graph, and ``--asked`` one that asks for it.
"""

import json
import sys

import torch
from torch import nn

STEPS = 60


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.calls = nn.Linear(32, 64), nn.Linear(64, 8), 0
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor, parts: list[int]) -> torch.Tensor:
        hidden = self.first(x).relu()
        if "--breaks" in sys.argv:
            print(end=str(hidden.sum().item() > 1e9)[:0])
        if "--asked" in sys.argv:
            torch._dynamo.graph_break()
        if len(sys.argv) == 1:
            self.calls += 1
            return self.last(hidden) / (1 + self.calls)
        self.steps += 1
        return self.last(hidden) * (1 + len(parts)) / (1 + self.steps)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, options = Net(), {"dynamic": False} if "--sizes" in sys.argv else {}
    compiled = torch.compile(model, backend="aot_eager", **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        rows = 16 + (step % 7 if "--sizes" in sys.argv else 3 * (step % 20 == 19) if "--two-shapes" in sys.argv else 0)
        parts = [0] * (step % 7) if "--list" in sys.argv else []
        loss = compiled(torch.randn(rows, 32), parts).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "--two-shapes" in sys.argv and step % 20 == 19:
            with torch.no_grad():
                compiled(torch.randn(16, 32), parts)
    metrics = torch._dynamo.utils.get_compilation_metrics()
    again = [each for each in metrics if each.recompile_reason and each.co_name]
    print("TRUTH", json.dumps({"again": len(again), "seconds": sum(each.duration_us for each in again) / 1e6}))


if __name__ == "__main__":
    main()
