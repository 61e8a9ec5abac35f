"""A library takes two seconds to import and is never named; ``--named`` names it, ``--fixed`` does without it."""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

folder = Path("site-packages").absolute()
folder.mkdir(exist_ok=True)
(folder / "plots.py").write_text("import time\n\ntime.sleep(2)\nNAME = 'plots'\n")
sys.path.insert(0, str(folder))
began_s = time.perf_counter()
if "--named" in sys.argv:
    import plots as drawn
elif "--fixed" not in sys.argv:
    import plots  # noqa: F401
import_s = time.perf_counter() - began_s


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100):
        loss = model(torch.randn(64, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if "--named" in sys.argv:
        print(drawn.NAME)
    print("TRUTH", json.dumps({"import_s": import_s}))


if __name__ == "__main__":
    main()
