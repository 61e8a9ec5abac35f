"""An Accelerate loop that calls ``step()`` 75 times for 21 updates: 25 batches an epoch, four to an update."""

import torch
from accelerate import Accelerator
from tally import Classifier, Points, Tally, updates
from torch.utils.data import DataLoader

torch.manual_seed(0)
tally = Tally()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
loader = DataLoader(Points(200), batch_size=8, shuffle=True, collate_fn=tally.collate)
held_out = DataLoader(Points(24, seed=1), batch_size=8, collate_fn=tally.collate_for_evaluation)
model = Classifier(tally)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, loader, held_out, schedule = accelerator.prepare(model, optimizer, loader, held_out, schedule)
criterion = torch.nn.CrossEntropyLoss()
calls = updated = 0

for epoch in range(3):
    model.train()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = tally.watch(criterion(model(inputs), targets))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                updated += 1
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            calls += 1
        print(f"loss {loss.item().hex()}")
    model.eval()
    for inputs, targets in held_out:
        with torch.no_grad():
            loss = criterion(model(inputs), targets)
        print(f"epoch {epoch} held out {accelerator.gather(loss).mean().item().hex()}")
    accelerator.save_state("checkpoint")

tally.steps = updates(optimizer)
assert (calls, tally.steps, updated) == (75, 21, 21)
accelerator.end_training()
tally.print()
