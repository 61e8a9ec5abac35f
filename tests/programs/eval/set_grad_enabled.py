"""The transfer learning tutorial: one loop for both phases, zero_grad in both, set_grad_enabled for the difference."""

import copy

import torch
from _tiny import counts, examples, net, show, truth
from torch import nn
from torch.utils.data import DataLoader

count = counts("validation_epoch/data_loading", "validation_epoch/forward_pass", "checkpointing")
model, criterion = net(), nn.CrossEntropyLoss()
model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
dataloaders = {"train": DataLoader(examples(40), 8, shuffle=True), "val": DataLoader(examples(20), 8, shuffle=True)}
best_accuracy, best_weights = -1.0, copy.deepcopy(model.state_dict())
for _epoch in range(3):
    for phase in ("train", "val"):
        if phase == "train":
            model.train()
        else:
            model.eval()
        running_loss, running_corrects, seen = 0.0, 0, 0
        for inputs, labels in dataloaders[phase]:
            count["data_loading" if phase == "train" else "validation_epoch/data_loading"] += 1
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = model(inputs)
                count["forward_pass" if phase == "train" else "validation_epoch/forward_pass"] += 1
                loss = criterion(outputs, labels)
                if phase == "train":
                    loss.backward()
                    count["backward_pass"] += 1
                    optimizer.step()
                    count["steps"] += 1
            show(loss)
            running_loss += loss.item() * inputs.size(0)
            running_corrects += (outputs.argmax(1) == labels).sum().item()
            seen += inputs.size(0)
        if phase == "train":
            scheduler.step()
        print(phase, (running_loss / seen).hex(), running_corrects / seen)
        if phase == "val" and running_corrects / seen > best_accuracy:
            best_accuracy = running_corrects / seen
            torch.save(model.state_dict(), "best.pt")
            count["checkpointing"] += 1
model.load_state_dict(torch.load("best.pt", weights_only=True))
truth(count)
