"""torch is imported late, inside a function; a probe for it and other imports come first."""

import importlib.util
import json
import sys

if importlib.util.find_spec("torch") is None:
    sys.exit("this program needs torch")
count = {"steps": 0, "data_loading": 0, "forward_pass": 0, "backward_pass": 0}


def main():
    print("torch" in sys.modules)
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4, shuffle=True):
        count["data_loading"] += 1
        optimizer.zero_grad()
        loss = model(x).square().mean()
        count["forward_pass"] += 1
        loss.backward()
        count["backward_pass"] += 1
        optimizer.step()
        count["steps"] += 1
        print("loss", loss.item().hex())


main()
print("TRUTH", json.dumps(count))
