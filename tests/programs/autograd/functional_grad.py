"""torch.func: gradients of functional_call for a batch, then one for each example under vmap."""

import torch
from _tiny import counts, examples, net, truth
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(params, inputs, targets):
    count["forward_pass"] += 1
    return F.cross_entropy(functional_call(model, params, (inputs,)), targets)


def loss_of_one(params, example, target):
    return loss_of(params, example.unsqueeze(0), target.unsqueeze(0))


def mean_of_gradients(params, inputs, targets):
    grads, losses = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0))(params, inputs, targets)
    return {name: grad.mean(0) for name, grad in grads.items()}, losses.mean()


for gradients_of in (grad_and_value(loss_of), mean_of_gradients):
    for inputs, targets in DataLoader(examples(40), batch_size=8, shuffle=True):
        count["data_loading"] += 1
        grads, loss = gradients_of({name: p.detach() for name, p in model.named_parameters()}, inputs, targets)
        count["backward_pass"] += 1
        for name, p in model.named_parameters():
            p.grad = grads[name]
        optimizer.step()
        count["steps"] += 1
        print("loss", loss.item().hex())
truth(count)
