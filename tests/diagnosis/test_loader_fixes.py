"""Fixes for waiting for data depend on what is set, and on the CPUs that are free."""

from dataclasses import replace

import pytest

from tests.support.recording import section_stats, snapshot_of
from training_profiler.diagnosis import diagnose
from training_profiler.diagnosis.loader_fixes import (
    first_batch_fix,
    free_cpus,
    stalls_fix,
    transfer_fix,
    waiting_fix,
    waiting_saved,
)
from training_profiler.snapshot.machine import Level, MachineStats
from training_profiler.snapshot.snapshot import DeviceTimingStats, LineStats, LoaderStats, Snapshot

GPU = DeviceTimingStats("cuda", "NVIDIA A100", "events", 100)


def machine(busy: float, cores: float = 8.0) -> MachineStats:
    used = Level(busy, busy, busy)
    part = Level(busy / cores, busy / cores, busy / cores)
    return MachineStats(9, cores=cores, host_cores=int(cores), cpu_process=used, cpu_host=part)


def run(busy: float = 1.0, device: DeviceTimingStats | None = None, **arguments) -> Snapshot:
    loader = LoaderStats("0", 100, None, 5.0, **{"num_workers": 0, "persistent_workers": False, **arguments})
    waiting = snapshot_of({"data_loading": 0.5, "backward_pass": 0.5})
    return replace(waiting, loaders=(loader,), machine=machine(busy), device=device)


def test_without_workers_some_are_advised_and_nothing_that_needs_workers():
    fix = waiting_fix(run(pin_memory=False))
    assert fix == (
        "Set DataLoader(num_workers=7), now 0: 7.0 CPUs are free; otherwise use faster storage or preprocess less"
    )


def test_no_worker_is_advised_where_all_cpus_are_busy():
    fix = waiting_fix(run(busy=7.8))
    assert fix.startswith("More workers would not help: all 8 CPUs are busy")
    assert "num_workers" not in fix


def test_stalls_are_avoided_by_workers_only_where_cpus_are_free_for_them():
    assert stalls_fix(run(busy=7.8)) == (
        "Avoid data stalls: preprocess less per sample, above all in the slowest samples"
    )
    assert stalls_fix(run(busy=7.8, num_workers=2)) == (
        "Avoid data stalls: a larger prefetch_factor, samples of more even cost"
    )
    assert stalls_fix(run(num_workers=2)) == (
        "Avoid data stalls: more workers, a larger prefetch_factor, samples of more even cost"
    )


def test_a_loader_without_workers_has_no_prefetch_factor_to_raise():
    assert stalls_fix(run()) == ("Avoid data stalls: batches made in workers (num_workers), samples of more even cost")


def test_only_what_is_not_set_is_advised():
    workers = {"num_workers": 2, "prefetch_factor": 2}
    fix = waiting_fix(run(device=GPU, persistent_workers=False, pin_memory=False, **workers))
    assert "set pin_memory=True; set persistent_workers=True" in fix
    fix = waiting_fix(run(device=GPU, persistent_workers=True, pin_memory=True, **workers))
    assert "pin_memory" not in fix
    assert "persistent_workers" not in fix


def test_pinned_memory_needs_an_accelerator():
    assert "pin_memory" not in waiting_fix(run(pin_memory=False))


def test_loader_that_is_made_for_each_pass_keeps_no_workers():
    arguments = {"num_workers": 2, "is_remade": True}
    assert "; make the DataLoader once" in waiting_fix(run(**arguments))
    assert first_batch_fix(run(**arguments)).startswith("Make the DataLoader once, before the loop")


@pytest.mark.parametrize(("first_s", "is_first"), [(1.0, False), (3.0, True)])
def test_new_workers_for_each_pass_come_first_where_passes_are_short(first_s, is_first):
    short = run(num_workers=2, is_remade=True)
    totals = {"data_loading": 8.0, "first_fetch": first_s}
    rows = [section_stats(name, total_s=total_s, step_total_s=total_s) for name, total_s in totals.items()]
    fix = waiting_fix(replace(short, sections={**short.sections, **{row.name: row for row in rows}}))
    assert fix.startswith("Make the DataLoader once") is is_first
    assert fix.lower().count("make the dataloader once") == 1


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        ({"num_workers": 0}, "Check what the data set and its sampler do"),
        ({"num_workers": 2, "persistent_workers": True}, "Check what the sampler does"),
        ({"num_workers": 2, "persistent_workers": False}, "Set persistent_workers=True"),
    ],
)
def test_fix_of_first_batches(arguments, begin):
    assert first_batch_fix(run(**arguments)).startswith(begin)


def test_fix_of_transfers():
    assert "pin_memory" in transfer_fix(run(pin_memory=False))
    assert "pin_memory" not in transfer_fix(run(pin_memory=True))


def test_copies_of_no_loader_are_not_to_be_pinned_by_one():
    fix = transfer_fix(replace(run(), loaders=()))
    assert "DataLoader" not in fix
    assert fix.startswith("Copy from pinned memory (pin_memory() of a tensor")


@pytest.mark.parametrize(("copies", "is_many"), [(700, False), (900, True)])
def test_many_small_copies_are_to_become_few(copies, is_many):
    sections = run().sections | {"data_transfer": section_stats("data_transfer", 0.2, total_s=2.0, count=copies)}
    fix = transfer_fix(replace(run(pin_memory=True), sections=sections))
    assert ("copy at once what belongs together (9 copies a step)" in fix) == is_many
    assert fix.startswith("Use .to(device, non_blocking=True)")


def test_loader_of_another_kind_gets_general_advice():
    other = replace(run(), loaders=(LoaderStats("0", 100, None, 5.0),))
    assert waiting_fix(other).startswith("Raise DataLoader(num_workers=...), then set pin_memory")
    assert waiting_fix(replace(run(), loaders=())).startswith("Raise DataLoader(num_workers=...)")


def test_without_the_monitor_free_cpus_are_unknown():
    unknown = replace(run(), machine=None)
    assert free_cpus(unknown) is None
    assert waiting_fix(unknown).startswith("Raise DataLoader(num_workers=...) from 0;")


def test_finding_has_the_fix():
    (finding,) = [each for each in diagnose(run()) if each.code == "data-loading-bound"]
    assert finding.fix.startswith("Set DataLoader(num_workers=7), now 0")


def in_memory(phase: str = "", called: str = "next", samples: int = 100, **arguments) -> Snapshot:
    """Return a run whose batches are made of tensors in memory, with the line that made them."""
    line = LineStats("train.py", 9, "main", share=0.4, samples=samples, phase=phase, called={called: 0.4})
    loader = {"data_set": "TensorDataset", "fetches_batches": False, **arguments}
    return replace(run(busy=7.8, **loader), lines={"data_loading": (line,)})


def test_tensors_in_memory_are_taken_by_whole_batches():
    for fix in (waiting_fix, stalls_fix):
        assert fix(in_memory()).startswith("Take the tensors of a whole batch at once")
    (finding,) = [each for each in diagnose(in_memory()) if each.code == "data-loading-bound"]
    assert finding.losses == "same bit for bit"


@pytest.mark.parametrize(
    ("collate", "is_single"), [("default_collate", True), ("default_convert", False), ("own", False)]
)
def test_tensors_in_memory_that_torch_collates_need_no_lines(collate, is_single):
    few = in_memory(samples=3, collate=collate)
    assert waiting_fix(few).startswith("Take the tensors of a whole batch at once") is is_single


def quick(batch_s: float = 0.0004, **arguments) -> Snapshot:
    whole = run(data_set="Pictures", **arguments)
    fetches = replace(whole.sections["data_loading"], p50_s=batch_s, step_total_s=100 * batch_s, count=100)
    return replace(whole, sections={**whole.sections, "data_loading": fetches})


def test_no_worker_is_advised_for_batches_that_take_as_long_to_hand_over():
    fix = waiting_fix(quick())
    assert fix.startswith("A batch takes 0.4 ms to make, and a worker about as long to hand it over: do less")
    assert "num_workers" not in fix
    assert waiting_saved(quick()) == 0.5
    assert "num_workers=" in waiting_fix(quick(0.002))
    assert waiting_saved(quick(0.002)) == 1.0


def test_quick_batches_with_slow_ones_among_them_are_not_quick():
    whole = quick()
    uneven = replace(whole.sections["data_loading"], step_total_s=1.0)
    assert "num_workers=" in waiting_fix(replace(whole, sections={**whole.sections, "data_loading": uneven}))


@pytest.mark.parametrize(
    "other",
    [
        in_memory(phase="collate", called="pad"),  # a function of the user's
        in_memory(samples=39),
        in_memory(data_set="Pictures"),
        in_memory(fetches_batches=True),
        in_memory(num_workers=2),
    ],
    ids=["collate_fn", "few samples", "another data set", "whole batches", "workers"],
)
def test_other_data_is_not_taken_for_tensors_in_memory(other):
    assert "whole batch" not in waiting_fix(other)
