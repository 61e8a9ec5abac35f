"""nanoGPT: the next batch is cut out between forward and backward; accumulation, estimate_loss, checkpoints."""

import numpy as np
import torch
from _tiny import counts, show, truth
from torch import nn
from torch.nn import functional as F

MICRO_STEPS, EVAL_INTERVAL, EVAL_ITERS = 3, 4, 5
count = counts("validation_epoch/forward_pass", "metrics_computation", "checkpointing")
for split in ("train", "val"):
    np.random.default_rng(0).integers(0, 20, 2000, dtype=np.uint16).tofile(f"{split}.bin")


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head, self.dropout = nn.Embedding(20, 8), nn.Linear(8, 20), nn.Dropout(0.1)

    def forward(self, x, targets):
        logits = self.head(self.dropout(self.embedding(x)))
        return logits, F.cross_entropy(logits.view(-1, 20), targets.view(-1))


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - 9, (4,))
    x = torch.stack([torch.from_numpy(data[i : i + 8].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 9].astype(np.int64)) for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(EVAL_ITERS)
        for k in range(EVAL_ITERS):
            X, Y = get_batch(split)
            _, loss = model(X, Y)
            count["validation_epoch/forward_pass"] += 1
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
X, Y = get_batch("train")
iter_num = 0
while True:
    if iter_num % EVAL_INTERVAL == 0:
        losses = estimate_loss()
        print("val", losses["val"].item().hex())
        if iter_num > 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
            count["checkpointing"] += 1
    for _micro_step in range(MICRO_STEPS):
        logits, loss = model(X, Y)
        count["forward_pass"] += 1
        loss = loss / MICRO_STEPS
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
        count["backward_pass"] += 1
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    count["metrics_computation"] += 1
    scaler.step(optimizer)
    count["steps"] += 1
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    show(loss)
    iter_num += 1
    if iter_num > 10:
        break
truth(count)
