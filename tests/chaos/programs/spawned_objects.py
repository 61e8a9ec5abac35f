"""Sends public objects to processes of each kind, and workers of loaders; prints what came of it."""

import contextlib
import multiprocessing

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from training_profiler import profile_dataloader, profile_epoch, profile_phase, profile_section


class Items(Dataset):
    """Has a section of its own, and a decorated method; both go to the workers."""

    def __init__(self):
        self.section = profile_section("load")

    def __len__(self):
        return 6

    @profile_section("item")
    def __getitem__(self, index):
        with self.section, profile_section("inner"):
            return torch.tensor([float(index)])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 1, bias=False)
        self.section = profile_section("forward_pass")
        nn.init.ones_(self.inner.weight)

    def forward(self, x):
        with self.section:
            return self.inner(x)


@profile_section("decorated")
def double(x):
    return 2 * x


def use(queue, objects):
    """Use the objects in another process."""
    section, epoch, phase, loader, function, model = objects
    with section as one, epoch as two, phase as three, contextlib.ExitStack() as stack:
        four = stack.enter_context(section)
        batches = [batch.tolist() for batch in loader]
        queue.put(([one, two, three, four], batches, function(4), model(torch.ones(1)).item(), len(loader)))


def main():
    """Print one line for each way to start a process."""
    for method in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(method)
        loader = profile_dataloader(DataLoader(Items(), batch_size=3), name="train")
        objects = (profile_section("a"), profile_epoch(1), profile_phase("validation"), loader, double, Model())
        queue = context.SimpleQueue()
        process = context.Process(target=use, args=(queue, objects))
        process.start()
        print(method, queue.get(), flush=True)
        process.join()
        print(method, process.exitcode, flush=True)
        workers = DataLoader(Items(), batch_size=3, num_workers=1, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in profile_dataloader(workers)], flush=True)


if __name__ == "__main__":
    main()
