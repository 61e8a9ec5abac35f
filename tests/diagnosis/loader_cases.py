"""Rules about loaders, and calls whose arguments a fix names: each fires, is silent just below, and without data."""

from dataclasses import replace

from tests.support.loader_workers import WORKERS as BUSY_WORKERS
from tests.support.loader_workers import machine
from tests.support.recording import section_stats, snapshot_of
from training_profiler.model.lines import StreamRepeats
from training_profiler.model.program import LOADER, OPTIMIZER, CallFacts, CallSite, OptimizerFacts, ProgramFacts
from training_profiler.model.snapshot import LineStats, LoaderStats, Snapshot, WorkerLineStats, WorkerStats


def loader(name: str, data_avg_s: float | None = None, batches: int = 100, **others) -> LoaderStats:
    return LoaderStats(name, batches, None, (data_avg_s or 0.0) * batches, data_avg_s=data_avg_s, **others)


def run_with(*loaders: LoaderStats) -> Snapshot:
    return replace(snapshot_of({"forward_pass": 0.4, "backward_pass": 0.55}), loaders=loaders)


def mixed(share: float | None, asked: float | None) -> Snapshot:
    return run_with(loader("main", batches=200, proportion=share, requested_proportion=asked))


ITERATES = WorkerLineStats("data.py", 17, "Stream.__iter__", 0.9, 90, "fetch")
REPEATS = StreamRepeats(2, 128, 2.0, 0.0, True)


def streaming(repeats: StreamRepeats | None, *others: LoaderStats, lines: tuple[WorkerLineStats, ...] = ()) -> Snapshot:
    """Return a run whose loader has a stream, and workers that yield the same samples."""
    workers = WorkerStats(2, 100, 0.5, 0.05, 0.1, 0.05, 0.0, 90, lines=lines, repeats=repeats)
    stream = loader("0", 0.001, num_workers=2, data_set="Stream", made_at="train.py:41", workers=workers)
    return run_with(stream, *others)


def restarting(passes, batches=100, first_share=0.6, start_s=0.0, **changes):
    """Return a run of 100 steps and 10 s, in which ``passes`` of the batches are the first of theirs."""
    run = snapshot_of({"data_loading": 0.7, "forward_pass": 0.1, "backward_pass": 0.2}, steps=100)
    sections = dict(run.sections)
    sections["data_loading"] = replace(sections["data_loading"], count=batches)
    total_s = 10 * first_share
    sections["first_fetch"] = section_stats(
        "first_fetch", first_share, count=passes, total_s=total_s, parent="data_loading", step_total_s=total_s
    )
    if start_s:
        sections["worker_start"] = section_stats(
            "worker_start", start_s / 10, count=passes, total_s=start_s, parent="data_loading", step_total_s=start_s
        )
    return replace(run, sections=sections, **changes)


FETCH = LineStats("train.py", 9, "main", 0.6, 600, called={"next": 0.6})


def with_unattributed(*lines, share=0.2):
    """Return a run with a pass for each batch, and 2 s in no section, which these lines have."""
    run = restarting(100, first_share=0.5, lines={"first_fetch": (FETCH,), "other": lines})
    sections = {**run.sections, **snapshot_of({"other": share}, steps=100).sections}
    return replace(run, sections={name: sections[name] for name in (*run.sections, "other")})


def cut_loader(name, cut_passes, wait_s, batches=100, **others):
    return LoaderStats(name, batches, None, wait_s, data_avg_s=wait_s / batches, cut_passes=cut_passes, **others)


def with_two(cut_passes=99, wait_s=6.0, **others):
    """Return a run with another loader, whose passes have 50 batches."""
    return restarting(
        102, batches=200, loaders=(cut_loader("0", 0, 1.0), cut_loader("1", cut_passes, wait_s, **others))
    )


def with_start(run, **figures):
    """Return a run whose loaders start workers for 1 s."""
    figures = {"count": 100, "total_s": 1.0, "parent": "data_loading", "step_total_s": 1.0, **figures}
    return replace(run, sections={**run.sections, "worker_start": section_stats("worker_start", 0.1, **figures)})


REST = LineStats("train.py", 12, "main", 0.02, 20)
IN_SAMPLER = (LineStats("data.py", 9, "main", share=0.25, samples=100, phase="sampler"),)
WORKERS = with_two(wait_s=3.0, num_workers=2)


TRAIN = CallFacts(LOADER, "DataLoader", CallSite("train.py", 41), (("num_workers", "0"), ("pin_memory", "False")))
VALIDATE = CallFacts(LOADER, "DataLoader", CallSite("train.py", 44), (("num_workers", "4"),))
IN_LIBRARY = TRAIN._replace(site=CallSite("train.py", 9, inside="acme/data.py:7 make"))
OF_TRAINER = TRAIN._replace(site=CallSite("train.py", 9, inside="transformers/trainer.py:812 get_loader"))
ADAM = CallFacts(OPTIMIZER, "Adam", CallSite("train.py", 50), (("fused", "None"),))
SGD = CallFacts(OPTIMIZER, "SGD", CallSite("train.py", 52), (("fused", "None"),))


def waiting(calls: tuple[CallFacts, ...], made_at: str = "train.py:41") -> Snapshot:
    run = snapshot_of({"data_loading": 0.5, "backward_pass": 0.5})
    loader = LoaderStats("0", 100, None, 5.0, num_workers=0, made_at=made_at)
    return replace(run, loaders=(loader,), program=ProgramFacts(calls=calls))


def optimizing() -> Snapshot:
    run = snapshot_of({"optimizer_step": 0.5, "backward_pass": 0.5})
    facts = ProgramFacts(OptimizerFacts("SGD", 20, ("float32",), ("cpu",), has_fused=True), calls=(ADAM, SGD))
    return replace(run, program=facts)


def copying(copied: int | None, num_workers: int = 2) -> Snapshot:
    """Return a run on a machine of 10 GiB whose workers have copied so much each."""
    workers = replace(BUSY_WORKERS, memory_copied_bytes=copied)
    run = run_with(replace(loader("0"), num_workers=num_workers, workers=workers, data_set="Texts"))
    return replace(run, machine=replace(machine(1.0), ram_host_total_bytes=10 * 2**30))


SAYS = {
    "workers-copy-memory": {"of two workers": copying(2**30)},
    "stream-repeated": {
        "each yields all": streaming(REPEATS, lines=(ITERATES,)),
        "some of four": streaming(replace(REPEATS, workers=4)),
        "one of two loaders": streaming(REPEATS, loader("1", 0.001, batches=300)),
        "a part of the stream": streaming(replace(REPEATS, is_over=False)),
    },
    "same-order": {
        "three passes": run_with(loader("0", same_order=2, made_at="train.py:41")),
        "one of two loaders": run_with(loader("0"), loader("1", same_order=3)),
    },
    "loader-slow": {
        "one of two": run_with(loader("main", 0.001), loader("aux", 0.016)),
        "just over twice the other": run_with(loader("main", 0.004), loader("aux", 0.0081)),
        "beside the mean batch of two": run_with(
            loader("a", 0.001, batches=300), loader("b", 0.005), loader("d", 0.02)
        ),
    },
    "loader-mix": {
        "another mix": run_with(
            loader("main", batches=800, proportion=0.8, requested_proportion=2 / 3),
            loader("aux", batches=200, proportion=0.2, requested_proportion=1 / 3),
        ),
        "just beyond chance": mixed(0.61, 0.5),
    },
    "loader-restarted": {
        "for each batch": restarting(100),
        "dropping iterators": with_unattributed(replace(FETCH, share=0.18, samples=180, called={"next": 0.18}), REST),
        "another iterator is dropped": with_unattributed(
            LineStats("train.py", 20, "main", 0.18, 180, called={"next": 0.18})
        ),
        "another call": with_unattributed(replace(FETCH, share=0.18, called={"augment": 0.18})),
        "one of two": with_two(),
        "one of two starts workers": with_start(WORKERS),
        "a validation starts workers": with_start(WORKERS, step_total_s=0.0),
        "starting workers": restarting(100, first_share=0.3, start_s=3.0),
    },
    "data-loading-bound": {
        "one of two loaders has a call": waiting((TRAIN, VALIDATE)),
        "the only call of a loader": waiting((TRAIN, ADAM), ""),
        "a library's call": waiting((IN_LIBRARY,), "train.py:9"),
        "a call of Hugging Face's trainer": waiting((OF_TRAINER,), "train.py:9"),
        "no call is known": waiting(()),
        "which of two calls is not known": waiting((TRAIN, VALIDATE), ""),
        "the call of an optimizer": waiting((ADAM,), ""),
        "the call of another loader": waiting((VALIDATE,)),
    },
    "optimizer-heavy": {"the call of the one with most parameters": optimizing()},
}
SILENT = {
    "workers-copy-memory": {
        "one worker": copying(2**30, num_workers=1),
        "a little": copying(200 * 2**20),
        "unknown": copying(None),
        "the machine is unknown": replace(copying(2**30), machine=None),
    },
    "stream-repeated": {
        "divided": streaming(replace(REPEATS, times=1.0)),
        "as often as drawn samples": streaming(replace(REPEATS, times=1.5)),
        "samples come again in a worker": streaming(replace(REPEATS, again=0.11)),
        "unknown": streaming(None),
        "not observed": run_with(loader("0", 0.001, num_workers=2)),
    },
    "same-order": {
        "another order": run_with(loader("0")),
        "two passes": run_with(loader("0", same_order=1)),
        "a look at the first batch": run_with(loader("0", same_order=2, cut_passes=1)),
        "validation": run_with(loader("0", same_order=3, phase="val")),
    },
    "loader-slow": {
        "none": run_with(),
        "one": run_with(loader("main", 0.016)),
        "twice": run_with(loader("main", 0.004), loader("aux", 0.008)),
        "unknown": run_with(loader("main", None), loader("aux", 0.016)),
        "few batches": run_with(loader("main", 0.001), loader("aux", 0.016, batches=7)),
        "of a validation": run_with(loader("main", 0.001), loader("aux", 0.016, phase="val")),
        "0.9 % of the run": run_with(loader("main", 0.0001), loader("aux", 0.0009)),
    },
    "loader-mix": {
        "one point": mixed(0.51, 0.5),
        "chance: one standard deviation is 3.5 points": mixed(0.56, 0.5),
        "not asked": mixed(0.56, None),
        "unknown": mixed(None, 0.5),
    },
    "loader-restarted": {
        "five batches a pass": restarting(20),
        "few passes": restarting(9, batches=9),
        "fast": restarting(100, first_share=0.05),
        "epochs of one batch": restarting(100, program=ProgramFacts(epochs=100)),
        "one of two is mostly whole": with_two(cut_passes=80),
        "one of two is fast": with_two(wait_s=0.4),
        "one of two has few passes": with_two(cut_passes=9, batches=9),
    },
    "sampler-slow": {"it is the cause": replace(with_two(), lines={"data_loading": IN_SAMPLER})},
}
