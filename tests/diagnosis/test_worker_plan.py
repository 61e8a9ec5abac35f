"""How many workers a loader needs, within what the CPUs allow."""

from dataclasses import replace
from typing import Any

from tests.support.loader_workers import BLUR, WORKERS, machine, waiting_run
from training_profiler.diagnosis import Finding, diagnose
from training_profiler.diagnosis.loader_fixes import stalls_fix, waiting_fix
from training_profiler.model.snapshot import EpochStats, Level, LineStats, Snapshot, WorkerStats


def waiting(run: Snapshot) -> Finding:
    return next(finding for finding in diagnose(run) if finding.code == "data-loading-bound")


IDLE_WORKERS = replace(WORKERS, batch_avg_s=0.004, cpu_avg_s=0.004, batch_max_s=0.050, phases={"idle": 0.9})


def handed_over(workers: WorkerStats = IDLE_WORKERS, median_s: float = 0.020, first_batches: int = 4) -> Snapshot:
    """Return a training whose batches take longer from the worker to the training than to be made."""
    run = waiting_run(workers)
    fetches = replace(run.sections["data_loading"], p50_s=median_s)
    first_s = median_s * first_batches
    first = replace(fetches, name="first_fetch", count=first_batches, total_s=first_s, parent="data_loading")
    return replace(run, sections={**run.sections, "data_loading": fetches, "first_fetch": first})


def test_lines_of_several_loaders_are_weighed_by_their_work() -> None:
    run = waiting_run()
    other = replace(
        run.loaders[0], name="1", workers=replace(WORKERS, batches=600, lines=(replace(BLUR, file="b.py"),))
    )
    lines = replace(run, loaders=(*run.loaders, other)).lines_in_workers()
    assert [(line.file, round(line.share, 3)) for line in lines] == [
        ("b.py", 0.45),
        ("data.py", 0.15),
        ("data.py", 0.075),
    ]


def making(cpu_s: float | None = 0.028, busy: float = 1.0, cores: float = 8.0, **loader: Any) -> Snapshot:
    """Return a training that makes its batches itself: 40 ms a step, of which it uses 10 ms."""
    run = waiting_run(workers=None, num_workers=0)
    zero = replace(run.loaders[0], batch_cpu_avg_s=cpu_s, prefetch_factor=None, **loader)
    return replace(run, loaders=(zero,), machine=machine(busy, cores))


def waiting_itself(cpu_s: float, queued: float | None = 0.2, **loader: Any) -> Snapshot:
    """Return a training that makes its batches itself, of which it mostly waits for a disk, where no CPU is free."""
    run = making(cpu_s, busy=0.25, cores=2.0, data_avg_s=0.030, batch_wait_avg_s=0.040, **loader)
    full, wait = Level(1.0, 1.0, 1.0), None if queued is None else Level(queued, queued, queued)
    return replace(run, machine=replace(run.machine, cpu_host=full, cpu_wait_own=wait))


def threaded(threads: float, cores: float = 2.0, busy: float = 0.95) -> Snapshot:
    """Return a run whose two workers compute with so many threads each, and wait half of their time for a CPU."""
    workers = replace(WORKERS, threads=threads, busy=busy, cpu_avg_s=0.070, cpu_wait_avg_s=0.040)
    return replace(waiting_run(workers), machine=machine(0.95 * cores, cores))


def with_another(run: Snapshot) -> Snapshot:
    return replace(run, loaders=(*run.loaders, replace(run.loaders[0], name="1", wait_s=0.1)))


def lines_of_making(part: float) -> dict[str, tuple[LineStats, ...]]:
    called = {"np.load": part * 0.75}
    decode = LineStats("data.py", 7, "DS.__getitem__", part * 0.75, 90, phase="decode", called=called)
    loop = LineStats("train.py", 20, "main", 0.75 - decode.share, 10, phase="collate")
    return {"data_loading": (decode, loop)}


def calling(name: str, part: float = 0.9, of_line: float = 1.0) -> dict[str, tuple[LineStats, ...]]:
    decode, loop = lines_of_making(part)["data_loading"]
    return {"data_loading": (replace(decode, called={name: of_line * decode.share}), loop)}


def made_by(package: str, inside: str = "", part: float = 0.9) -> dict[str, tuple[LineStats, ...]]:
    decode, loop = lines_of_making(0.9)["data_loading"]
    return {"data_loading": (replace(decode, inside=inside, packages={package: part * decode.share}), loop)}


def tokenizing(epochs: int = 3, same_fetches: int = 23, is_map_style: bool = True) -> Snapshot:
    run = making(cores=2.0, is_map_style=is_map_style)
    facts = run.program._replace(epochs=epochs, same_fetches=same_fetches)
    return replace(run, lines=made_by("tokenizers"), program=facts)


def decoding(
    epochs: int = 3,
    same_fetches: int = 23,
    pixels: int = 1000,
    part: float = 0.9,
    phase: str = "decode",
    later_s: float = 0.03,
    **loader: Any,
) -> Snapshot:
    run = making(cores=2.0, **{"is_map_style": True, "samples": 4000 * epochs, **loader})
    facts = run.program._replace(epochs=epochs, same_fetches=same_fetches, shapes=((1, (20, pixels)),))
    line, loop = lines_of_making(part)["data_loading"]
    passes = tuple(
        EpochStats(at, 9.0, 20, 20, None, None, {}, None, 0.03 if at == 1 else later_s) for at in range(1, epochs + 1)
    )
    return replace(run, lines={"data_loading": (replace(line, phase=phase), loop)}, program=facts, epochs=passes)


UNEVEN = replace(WORKERS, batch_avg_s=0.015, cpu_avg_s=0.015, batch_max_s=0.9, busy=0.4, in_order_wait_share=0.62)
FAST = replace(WORKERS, batch_avg_s=0.015, cpu_avg_s=0.015, batch_max_s=0.9)
OWN = LineStats("train.py", 40, "train", 0.4, 200)
SAMPLER = LineStats("data.py", 8, "Buckets.__iter__", 0.3, 150, phase="sampler")
RUN, TWO_CPUS = waiting_run(), making(cores=2.0)
MAKING = lines_of_making(0.9)["data_loading"]


def of_loader(run: Snapshot, **figures: Any) -> Snapshot:
    return replace(run, loaders=(replace(run.loaders[0], **figures),))


def ahead(longest_s: float) -> Snapshot:
    """Return a run that uses four batches, made ahead, in 40 ms."""
    fast = replace(WORKERS, batch_avg_s=0.005, cpu_avg_s=0.005, batch_max_s=longest_s)
    return of_loader(waiting_run(fast), prefetch_factor=2)


def of_short_passes() -> Snapshot:
    run = waiting_run(replace(WORKERS, batch_avg_s=0.005, cpu_avg_s=0.005, batch_max_s=0.01))
    fetches = run.sections["data_loading"]
    first = replace(fetches, name="first_fetch", step_total_s=0.9 * fetches.step_total_s, parent="data_loading")
    return of_loader(replace(run, sections={**run.sections, "first_fetch": first}), is_remade=True)


def often_queued(run: Snapshot) -> Snapshot:
    assert run.machine is not None
    return replace(run, machine=replace(run.machine, cpu_wait=Level(0.3, 0.4, 0.3)))


def begun(start_s: float, first_s: float) -> Snapshot:
    """Return a run that waits 6 s, of which workers start for ``start_s``; 100 first batches take ``first_s``."""
    run, rows = waiting_run(replace(FAST, batch_max_s=0.02)), {"worker_start": start_s, "first_fetch": first_s}
    fetches = replace(run.sections["data_loading"], parent="data_loading", count=100)
    rows = {name: replace(fetches, name=name, total_s=total_s, step_total_s=total_s) for name, total_s in rows.items()}
    return replace(run, sections={**run.sections, **rows})


SAYS = {
    "data-loading-bound": {
        "the line in the workers": RUN,
        "no samples in workers": waiting_run(workers=None),
        "no lines in workers": waiting_run(replace(WORKERS, lines=())),
        # 80 ms to make a batch and 10 ms to use it: eight workers, which take 6 CPUs more than now.
        "eight workers": waiting_run(busy=2.0, using_s=0.010),
        # Two workers use 2 CPUs and 2 are free: four workers make a batch each 20 ms.
        "four of eight workers have a CPU": waiting_run(busy=6.0, using_s=0.010),
        "no CPU is free": waiting_run(busy=7.8),
        # The first batches, before the steps that count, took longer.
        "no CPU is free, and workers were slow at first": waiting_run(replace(WORKERS, batch_avg_s=0.090), busy=7.8),
        "handing over takes longer than making": handed_over(),
        "the training would wait for a CPU, too": handed_over(
            replace(IDLE_WORKERS, batch_avg_s=0.026, cpu_wait_avg_s=0.022)
        ),
        "the training often waits for a CPU": often_queued(handed_over()),
        "it uses a batch for longer than it waits for a CPU": often_queued(
            handed_over(replace(IDLE_WORKERS, batch_avg_s=0.002, cpu_avg_s=0.002), median_s=0.009)
        ),
        "busy workers are late": handed_over(replace(IDLE_WORKERS, phases={"idle": 0.2})),
        "a few long waits": handed_over(median_s=0.003),
        "passes of two batches": handed_over(first_batches=100),
        "hardly less without workers": handed_over(replace(IDLE_WORKERS, batch_avg_s=0.027), median_s=0.028),
        "beside a line of its own": replace(handed_over(), lines={"data_loading": (OWN,)}),
        # Workers wait for the numbers of a sampler, which the training process computes.
        "a slow sampler": replace(handed_over(), lines={"data_loading": (OWN, SAMPLER)}),
        "workers wait for a disk": waiting_run(replace(WORKERS, cpu_avg_s=0.008), busy=7.0),
        "workers wait for a CPU": waiting_run(replace(WORKERS, batch_avg_s=0.160, cpu_wait_avg_s=0.080), busy=2.0),
        "fast on average": waiting_run(FAST),
        "fast": waiting_run(replace(FAST, batch_max_s=0.02)),
        "the longest batch is made ahead": ahead(0.039),
        "the longest batch is late": ahead(0.041),
        "passes are short": of_short_passes(),
        "workers start for long": begun(2.0, 1.0),
        "new workers are late": begun(0.0, 3.0),  # of 1.5 s that kept ones take
        "first batches take as long as others": begun(0.0, 1.5),
        "few batches of workers": waiting_run(replace(WORKERS, batches=15)),
        "two loaders": replace(RUN, loaders=RUN.loaders * 2),
        "later batches are ready": waiting_run(UNEVEN),
        "later batches are ready, workers are busy": waiting_run(replace(UNEVEN, busy=0.97)),
        "later batches are rarely ready": waiting_run(replace(UNEVEN, in_order_wait_share=0.1)),
        "it is unknown whether later ones are ready": waiting_run(replace(UNEVEN, in_order_wait_share=None)),
        "sixteen threads on two CPUs": threaded(8.0),
        "a thread for each CPU": threaded(1.0),
        "threads for all CPUs": threaded(4.0, cores=8.0),
        "more workers than CPUs": threaded(8.0, cores=1.0),
        "workers that are not busy": threaded(8.0, busy=0.6),
        "workers that are idle between short passes": threaded(8.0, busy=0.8),
        "two batches a step": of_loader(waiting_run(using_s=0.010), batches=400),
        "made by itself": making(),
        # One CPU is used and one is free: 40 ms of CPU time for a batch take 20 ms on both.
        "made by itself on two CPUs": TWO_CPUS,
        "made by itself on busy CPUs": making(busy=7.8),
        "it waits for a disk, and no CPU is free": waiting_itself(0.002),
        "it computes, and no CPU is free": waiting_itself(0.010),
        "it waits for a CPU": waiting_itself(0.002, queued=0.4),
        "it is unknown whether it waits for a CPU": waiting_itself(0.002, queued=None),
        "one of two loaders waits for a disk": with_another(waiting_itself(0.002)),
        "a quarter of one CPU is used": making(cpu_s=0.002, busy=0.25, cores=1.0),
        "an iterable data set": making(is_map_style=False),
        "a data set with an index": making(is_map_style=True),
        "unknown CPU time": making(cpu_s=None),
        "more than one thread": making(cpu_s=0.090),
        "few batches": making(batches=15),
        "no machine": replace(making(), machine=None),
        "a line that takes longest": replace(TWO_CPUS, lines=lines_of_making(0.9)),
        "a line that takes less than workers save": replace(TWO_CPUS, lines=lines_of_making(0.5)),
        "a line without calls": replace(TWO_CPUS, lines={"data_loading": tuple(replace(x, called={}) for x in MAKING)}),
        "a line that fetches": replace(
            TWO_CPUS, lines={"data_loading": tuple(replace(line, called={"next": 0.6}) for line in MAKING)}
        ),
        "a line of few samples": replace(
            TWO_CPUS, lines={"data_loading": tuple(replace(line, samples=3) for line in MAKING)}
        ),
        "tensors": replace(TWO_CPUS, lines=calling("torch.tensor")),
        "arrays": replace(TWO_CPUS, lines=calling("np.array")),
        "tensors of a type": replace(TWO_CPUS, lines=calling("torch.FloatTensor")),
        "tensors in half of it": replace(TWO_CPUS, lines=calling("torch.tensor", part=0.45)),
        "tensors in half of a line": replace(TWO_CPUS, lines=calling("torch.tensor", of_line=0.5)),
        "a library makes batches": replace(TWO_CPUS, lines=made_by("datasets", "datasets/torch_formatter.py:8 get")),
        "without making tensors": replace(TWO_CPUS, lines=made_by("datasets", "datasets/formatting.py:8 get")),
        "a line that calls pandas": replace(TWO_CPUS, lines=made_by("pandas")),
        "a line that hardly calls pandas": replace(TWO_CPUS, lines=made_by("pandas", part=0.2)),
        "each epoch tokenizes the same texts": tokenizing(),
        "a tokenizer in one epoch": tokenizing(epochs=1),
        "a tokenizer of a stream": tokenizing(is_map_style=False),
        "a tokenizer of random texts": tokenizing(same_fetches=-1),
        "a tokenizer in few batches": tokenizing(same_fetches=7),
        "each epoch decodes the same images": decoding(),
        "one epoch decodes images": decoding(epochs=1),
        "images of a stream": decoding(is_map_style=False),
        "images with random changes": decoding(same_fetches=-1),
        "images that fill the memory": decoding(pixels=70_000),
        "images that take little time": decoding(part=0.3),
        "images that are kept": decoding(later_s=0.002),
        "images that are put together": decoding(phase="collate"),
        "an unknown number of images": decoding(samples=None),
        "a line that calls an unknown library": replace(TWO_CPUS, lines=made_by("acme")),
        "no tensors": replace(TWO_CPUS, lines=calling("augmented.tensor2")),
    }
}


def test_uneven_steps_have_the_same_fix() -> None:
    assert stalls_fix(handed_over()) == waiting_fix(handed_over())


def test_one_of_two_loaders_gets_the_workers_that_the_cpus_allow() -> None:
    """Both make a batch for each step of 40 ms, 30 of which are waited for; two CPUs make that 20 ms at best."""
    slow = replace(TWO_CPUS.loaders[0], name="extra", wait_s=5.7, data_avg_s=0.0285)
    run = replace(TWO_CPUS, loaders=(slow, replace(slow, name="main", wait_s=0.3, data_avg_s=0.0015)))
    found = {finding.code: finding for finding in diagnose(run)}
    for finding in (found["data-loading-bound"], found["loader-slow"]):
        (action,) = finding.actions
        assert action.text == "DataLoader(..., num_workers=2, persistent_workers=True) for loader extra"
    assert 2.5 < action.part * found["loader-slow"].potential_saving_s < 4.0


def test_a_remedy_that_saves_more_than_workers_has_its_own_saving() -> None:
    """Two CPUs save two thirds of the waiting, and tensors that are made once nearly all that pandas takes of it."""
    run = replace(TWO_CPUS, lines=made_by("pandas", part=1.0))
    first, remedy, *_ = waiting(run).actions
    assert (first.text[:10], remedy.text[:12]) == ("DataLoader", "make tensors")
    assert remedy.part > 1.2 * first.part
