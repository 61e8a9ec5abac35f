"""Fixes for waiting for data depend on what is set, and on the CPUs that are free."""

from dataclasses import replace

from tests.support.loader_workers import machine
from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.snapshot import DeviceTimingStats, EpochStats, LineStats, LoaderStats, Snapshot

GPU = DeviceTimingStats("cuda", "NVIDIA A100", "events", 100)


def run(busy: float = 1.0, device: DeviceTimingStats | None = None, **arguments) -> Snapshot:
    loader = LoaderStats("0", 100, None, 5.0, **{"num_workers": 0, "persistent_workers": False, **arguments})
    waiting = snapshot_of({"data_loading": 0.5, "backward_pass": 0.5})
    return replace(waiting, loaders=(loader,), machine=machine(busy), device=device)


def in_memory(phase: str = "", called: str = "next", samples: int = 100, **arguments) -> Snapshot:
    """Return a run whose batches are made of tensors in memory, with the line that made them."""
    line = LineStats("train.py", 9, "main", share=0.4, samples=samples, phase=phase, called={called: 0.4})
    loader = {"data_set": "TensorDataset", "fetches_batches": False, **arguments}
    return replace(run(busy=7.8, **loader), lines={"data_loading": (line,)})


def reading() -> Snapshot:
    """Return a run whose data set reads arrays in a line that calls nothing, in a loop that calls a step."""
    line = LineStats("data.py", 5, "Scans.__getitem__", share=0.4, samples=100, phase="fetch")
    loop = LineStats("train.py", 9, "fit", share=0.01, samples=3, phase="fetch", called={"training_step": 0.01})
    return replace(run(busy=7.8, data_set="Scans"), lines={"data_loading": (line, loop)})


def pausing(share: float) -> Snapshot:
    """Return a run that is seen to pause in its data set, for this share of the run; it waits for data for 0.5."""
    line = LineStats("data.py", 5, "Files.__getitem__", 0.4, 100, phase="fetch", called={"time.sleep": share})
    return replace(run(busy=7.8, data_set="Files"), lines={"data_loading": (line,)})


def quick(batch_s: float = 0.0004, **arguments) -> Snapshot:
    whole = run(data_set="Pictures", **arguments)
    fetches = replace(whole.sections["data_loading"], p50_s=batch_s, step_total_s=100 * batch_s, count=100)
    return replace(whole, sections={**whole.sections, "data_loading": fetches})


WORKERS = {"num_workers": 2, "prefetch_factor": 2}
PINNED = run(pin_memory=True)
UNKNOWN = LoaderStats("0", 100, None, 5.0)


def in_passes(first_s: float, **arguments) -> Snapshot:
    """Return a run that waits 8 s, this much for first batches, and whose loader is made again for each pass."""
    short = run(num_workers=2, is_remade=True, **arguments)
    totals = {"data_loading": 8.0, "first_fetch": first_s}
    rows = {name: section_stats(name, total_s=total_s, step_total_s=total_s) for name, total_s in totals.items()}
    return replace(short, sections={**short.sections, **rows})


def transferring(*, copies: int = 100, **arguments) -> Snapshot:
    moving = snapshot_of({"data_transfer": 0.2, "backward_pass": 0.8})
    transfers = replace(moving.sections["data_transfer"], count=copies)
    return replace(run(**arguments), sections={**moving.sections, "data_transfer": transfers})


def beginning(**arguments) -> Snapshot:
    """Return a run whose passes begin with a slow batch."""
    epochs = (EpochStats(i, 10.0, 100, 100, None, 0.1, {}, first_s, 0.01) for i, first_s in ((1, 2.0), (2, 1.0)))
    return replace(run(**arguments), epochs=tuple(epochs))


def uneven(steps: Snapshot) -> Snapshot:
    """Return a run whose steps vary as these do, by its data, and do not wait for it on average."""
    shares = {"data_loading": 0.05, "backward_pass": 0.95}
    varying = snapshot_of(shares, std_s=0.05, median_s=0.05, explained={"data_loading": 0.9})
    return replace(varying, loaders=steps.loaders, machine=steps.machine, lines=steps.lines)


QUICK = quick()
SLOW_AMONG_THEM = replace(QUICK.sections["data_loading"], step_total_s=1.0)
SAYS = {
    "data-loading-bound": {
        "without workers": run(pin_memory=False),
        "without workers or a free CPU": run(busy=7.8),
        "without a free CPU, in a data set that pauses": pausing(0.25),
        "without a free CPU, in a data set that pauses a little": pausing(0.15),
        "pinned memory and kept workers": run(device=GPU, pin_memory=False, **WORKERS),
        "pinned memory and kept workers are set": run(
            device=GPU, **{"persistent_workers": True, "pin_memory": True, **WORKERS}
        ),
        "made again": run(num_workers=2, is_remade=True),
        "first batches take little": in_passes(1.0),
        "first batches take much": in_passes(3.0),
        "a loader of another kind": replace(run(), loaders=(UNKNOWN,)),
        "no loader": replace(run(), loaders=()),
        "free CPUs are unknown": replace(run(), machine=None),
        "tensors in memory": in_memory(),
        "tensors that torch collates": in_memory(samples=3, collate="default_collate"),
        "tensors that are converted": in_memory(samples=3, collate="default_convert"),
        "tensors that the program collates": in_memory(samples=3, collate="own"),
        "a function of the user's collates": in_memory(phase="collate", called="pad"),
        "few samples": in_memory(samples=39),
        "another data set": in_memory(data_set="Pictures"),
        "arrays that a line decompresses": reading(),
        "whole batches": in_memory(fetches_batches=True),
        "in workers": in_memory(num_workers=2),
        "batches are quick": QUICK,
        "batches are not quick": quick(0.002),
        "a slow batch among quick ones": replace(QUICK, sections={**QUICK.sections, "data_loading": SLOW_AMONG_THEM}),
    },
    "step-time-varies": {
        "data, no CPU is free": uneven(run(busy=7.8)),
        "data, no CPU is free, with workers": uneven(run(busy=7.8, num_workers=2)),
        "data with workers": uneven(run(num_workers=2)),
        "data without workers": uneven(run()),
        "data in memory": uneven(in_memory()),
    },
    "first-batch-slow": {
        "without workers": beginning(num_workers=0),
        "workers are kept": beginning(num_workers=2, persistent_workers=True),
        "workers are not kept": beginning(num_workers=2, persistent_workers=False),
        "made again": beginning(num_workers=2, is_remade=True),
    },
    "data-transfer": {
        "not pinned": transferring(pin_memory=False),
        "pinned": transferring(pin_memory=True),
        "of no loader": replace(transferring(), loaders=()),
        "seven copies a step": transferring(copies=700, pin_memory=True),
        "nine copies a step": transferring(copies=900, pin_memory=True),
    },
}
