"""torch.func: parameters are a dictionary of tensors, replaced by new ones after each gradient."""

import torch
from _tiny import STEP, counts, examples, net, show, truth
from torch.func import functional_call, grad_and_value
from torch.nn import functional as F
from torch.utils.data import DataLoader

count = counts()
model = net()
parameters = {name: p.detach() for name, p in model.named_parameters()}
velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}


def loss_of(parameters, inputs, targets):
    return F.cross_entropy(functional_call(model, parameters, (inputs,)), targets)


for inputs, targets in DataLoader(examples(96), batch_size=8, shuffle=True):
    gradients, loss = grad_and_value(loss_of)(parameters, inputs, targets)
    velocity = {name: 0.9 * velocity[name] + gradient for name, gradient in gradients.items()}
    parameters = {name: p - 0.1 * velocity[name] for name, p in parameters.items()}
    count.update(STEP)
    show(loss)
truth(count)
