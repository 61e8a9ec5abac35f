"""Fixes for waiting for data, from the arguments that the loader has now and the CPUs that are free."""

from collections import Counter
from collections.abc import Iterator
from math import prod
from operator import itemgetter
from statistics import median
from typing import Final

from training_profiler.base.sections import DATA_LOADING, DATA_TRANSFER, FIRST_FETCH, WORKER_START
from training_profiler.base.units import bytes_text, ms_text
from training_profiler.diagnosis.finding import Action, Change, Evidence, Fix, joined
from training_profiler.diagnosis.places import MAKING_TENSORS, NETWORK, PAUSING, may_be_a_quarter
from training_profiler.diagnosis.worker_plan import (
    FREE_CPUS,
    LESS_LOCKED,
    MOSTLY_WAITS,
    PREPROCESS_LESS,
    WorkerPlan,
    free_cpus,
    mostly_waits,
    part_of_waiting,
    saved_by_keeping,
    worker_plan,
)
from training_profiler.model.loader_workers import (
    COLLATE,
    LOCK,
    NO_COLLATE,
    OWN_COLLATE,
    PHASES,
    SHARED_LOCK,
    WHOLE_TENSORS,
)
from training_profiler.model.snapshot import TOKENIZERS, LineStats, LoaderStats, Snapshot

LOADING_TRIALS: Final = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "batched", "one_batch")
MOST_WORKERS: Final = 8  # to begin with
UNKNOWN_CPUS: Final = 2  # taken as free where that is not known
BEGINS_FROM: Final = 0.25  # of the waiting, for the begin of a pass
HELD_FROM: Final = 0.3  # of the waiting; workers of even speed reach a tenth
NOT_BUSY: Final = 0.85  # workers that are busier than this gain nothing from another order
# Taking a batch over from an idle worker took 2.4 to 4.7 ms on two busy cores, for batches of 2 kB to 1.5 MB.
QUICK_BATCH_S: Final = 0.001
SAVED_OF_QUICK: Final = 0.5
OF_A_DATA_SET: Final = ("__getitem__", "__getitems__", "__call__")  # methods that have no loop over a loader
THREADS_FROM: Final = 1.5  # of a worker
THREADS_BUSY_FROM: Final = 0.7  # where passes are short, workers are idle at their begin and end
SAVED_OF_THREADS: Final = 0.2  # of the waiting, by one thread a worker; measured with eight on one CPU each
ONE_THREAD_EACH: Final = "torch.set_num_threads(1), cv2.setNumThreads(1) in worker_init_fn, OPENBLAS_NUM_THREADS=1"
SAMPLES_NEEDED: Final = 40  # of lines; the error of a part of a half is then below 0.08
UNKNOWN_LOADER: Final = Fix(
    "Raise DataLoader(num_workers=...), then set pin_memory=True, persistent_workers=True and a larger "
    "prefetch_factor; otherwise use faster storage or preprocess less",
    (Change.NUM_WORKERS, Change.PIN_MEMORY, Change.PERSISTENT_WORKERS, Change.PREFETCH_FACTOR),
)
WHOLE_BATCHES: Final = Fix(
    "Take the tensors of a whole batch at once instead of sample by sample: DataLoader(dataset, batch_size=None, "
    "sampler=BatchSampler(sampler, batch_size, drop_last)) with the order as it is: sampler is RandomSampler(dataset) "
    "for shuffle=True, else SequentialSampler(dataset)",
    (Change.BATCHED,),
    (Action("DataLoader(..., batch_size=None, sampler=BatchSampler(...))", (Change.BATCHED,)),),
)
# What libraries have for batches that they make slowly: a file that has to be at work, the part of their time that it
# saves, as measured, and what to type.
REMEDIES: Final = {
    "datasets": (
        "torch_formatter",
        0.2,
        Action('dataset.with_format("numpy"): the loader makes the tensors', (Change.CHEAPER_LINES,)),
    ),
    "pandas": (
        "",
        0.95,
        Action("make tensors of the columns once: torch.tensor(frame.to_numpy())", (Change.AHEAD_OF_TIME,)),
    ),
    "torchvision": (
        "",
        0.25,
        Action("transform whole batches (v2 takes [N, C, H, W]), after the loader", (Change.LESS_PREPROCESSING,)),
    ),
    "webdataset": (
        "",
        0.25,
        Action("batch in the pipeline: .batched(n), with batch_size=None", (Change.LESS_PREPROCESSING,)),
    ),
    TOKENIZERS: (
        "",
        0.95,
        Action(
            "tokenize once, before the first epoch, in __init__ or by dataset.map: each epoch tokenizes the same texts",
            (Change.AHEAD_OF_TIME,),
        ),
    ),
}
SAME_NEEDED: Final = 8  # early batches without random numbers, before samples are taken for the same in each epoch
CACHED: Final = 0.3  # of the time of a fetch in the first pass
MOST_KEPT: Final = 1 << 30  # bytes of samples that a program may keep
REMEDY_FROM: Final = 0.25  # of the waiting
REMADE: Final = Fix(
    "Make the DataLoader once, before the loop: the program makes a new one for each pass", (Change.ONE_LOADER,)
)
KEPT: Final = Fix(
    "Set persistent_workers=True: it keeps the workers from one epoch to the next",
    (Change.PERSISTENT_WORKERS,),
    (Action("DataLoader(..., persistent_workers=True)", (Change.PERSISTENT_WORKERS,)),),
)
THEN_KEPT: Final = Fix("then persistent_workers=True keeps its workers", (Change.PERSISTENT_WORKERS,))


def slowest_loader(snapshot: Snapshot) -> LoaderStats | None:
    """Return the training loader that the run waited for most; None if there is none, or it is not torch's."""
    loaders = [loader for loader in snapshot.loaders if loader.phase == "train"]
    slowest = max(loaders, key=lambda loader: loader.wait_s, default=None)
    return None if slowest is None or slowest.num_workers is None else slowest


def _cpus_for(snapshot: Snapshot, loader: LoaderStats) -> float | None:
    """Return how many CPUs workers of a loader find free; None if unknown.

    Workers that mostly wait get a CPU also where others keep all of them busy; the delay is in their time.
    """
    free, machine = free_cpus(snapshot), snapshot.machine
    if free is None or machine is None or not (mostly_waits(snapshot, loader) or _is_pausing(snapshot)):
        return free
    return max(free, FREE_CPUS * machine.local_ranks)


def _is_pausing(snapshot: Snapshot) -> bool:
    """Return whether the training, where it makes its batches, is mostly seen in functions that wait."""
    waiting = sum(
        share
        for line in snapshot.lines_of_steps(DATA_LOADING)
        for name, share in line.called.items()
        if PAUSING.matches(name) or NETWORK.matches(name)
    )
    return _has_lines_of_making(snapshot) and waiting >= MOSTLY_WAITS * snapshot.sections[DATA_LOADING].share > 0


def waiting_fix(snapshot: Snapshot) -> Fix:
    """Return what to change where steps wait for batches; nothing that is set already, or cannot help."""
    loader = slowest_loader(snapshot)
    if loader is None:
        return UNKNOWN_LOADER
    lines = snapshot.lines_of_steps(DATA_LOADING) if _has_lines_of_making(snapshot) else []
    locked = next((line for line in lines if line.phase in (LOCK, SHARED_LOCK)), None)
    if locked is not None and _part_of_waiting(snapshot, locked) >= 0.5:
        return Fix(f"Shorten what holds the lock that {locked.place} waits for", (Change.SHORTER_LOCK,))
    if _is_of_tensors(snapshot, loader):
        return WHOLE_BATCHES
    if (plan := _plan(snapshot, loader)) is not None and plan.is_better_without:
        return plan.fix
    if plan is not None and plan.needed <= plan.now and saved_by_keeping(snapshot, loader) >= BEGINS_FROM:
        begin = first_batch_fix(snapshot)
        return joined([begin, plan.fix.as_next], begin.actions)  # batches are not late, but new workers are
    if quick_s := _quick_batch_s(snapshot, loader):
        return Fix(
            "Make whole batches at once (batch_size=None with a BatchSampler as sampler), or do less per sample: a "
            f"batch takes {ms_text(quick_s)} to make, and a worker about as long to hand it over",
            (Change.BATCHED,),
        )
    first = _more_workers(snapshot, loader) if plan is None else plan.fix
    fixes = [first, *_other_arguments(snapshot, loader)]
    is_said = first.endswith((PREPROCESS_LESS, LESS_LOCKED))
    if loader.is_remade and _begins_often(snapshot):
        once = Fix(f"{REMADE}, with new workers", REMADE.changes)
        fixes = [once, *(each.as_next for each in fixes if each != REMADE.as_next)]
    if threads := _surplus_threads(snapshot, loader):
        fixes = [threads, *(each.as_next for each in fixes)]
    saved_by_workers, line = _saved_by_workers(snapshot), _hottest_of_making(snapshot)
    part = made_part = 0.0
    if line is not None and line.share:
        made_share = sum(share for name, share in line.called.items() if MAKING_TENSORS.matches(name))
        part, made_part = _part_of_waiting(snapshot, line), min(1.0, made_share / line.share)
    if line is not None and made_part * part >= 0.5:
        made = f"make the tensors of {line.place} ahead of time, or from NumPy arrays where they are made of lists"
        fixes.append(Fix(made, (Change.AHEAD_OF_TIME,)))
    elif line is not None and saved_by_workers < part:
        fixes.append(Fix(f"less work in {line.place} can save more", (Change.LESS_PREPROCESSING,)))
    elif plan is not None and plan.cpu_s >= 0.7 * plan.making_s:  # it waits for no storage
        fixes += [] if is_said else [Fix("otherwise preprocess less")]
    else:
        fixes.append(Fix("otherwise use faster storage" + ("" if is_said else " or preprocess less")))
    return joined(fixes, tuple(_actions(snapshot, loader, plan)))


def _surplus_threads(snapshot: Snapshot, loader: LoaderStats) -> Fix | None:
    """Return the fix for workers that compute with more threads than there are CPUs; None where they do not."""
    workers, machine, count = loader.workers, snapshot.machine, loader.num_workers or 0
    if workers is None or machine is None or machine.cores is None or (workers.threads or 0) < THREADS_FROM:
        return None
    cpus, threads = machine.cores / machine.local_ranks, round(workers.threads or 0)
    if count * threads <= cpus or count > cpus or workers.busy <= THREADS_BUSY_FROM:
        return None
    return Fix(
        f"Let each worker compute with one thread: {ONE_THREAD_EACH}, or where the data set sets more. {count} workers "
        f"of {threads} threads have {cpus:g} CPUs, and wait {ms_text(workers.cpu_wait_avg_s)} of "
        f"{ms_text(workers.batch_avg_s)} a batch for one",
        (Change.NUM_THREADS,),
    )


def actions_for(snapshot: Snapshot, loader: LoaderStats) -> tuple[Action, ...]:
    """Return what to type for one of several loaders, with its part of their waiting; none if another is slower."""
    if loader is not slowest_loader(snapshot):
        return ()
    whole = waiting_saved(snapshot)
    actions = _actions(snapshot, loader, _plan(snapshot, loader))
    return tuple(action._replace(part=min(1.0, whole * action.part)).of_loader(loader.name) for action in actions)


def _actions(snapshot: Snapshot, loader: LoaderStats, plan: WorkerPlan | None) -> Iterator[Action]:
    """Yield what to type: the loader's arguments first, then less work in its hottest line.

    None where the making of a batch is not known: then the fix speaks for itself.
    """
    whole, wanted, now = waiting_saved(snapshot) or 1.0, None if plan is None else plan.wanted, loader.num_workers or 0
    if loader.is_remade and _begins_often(snapshot):
        return
    if _surplus_threads(snapshot, loader) is not None:
        yield Action(ONE_THREAD_EACH, (Change.NUM_THREADS,), min(1.0, SAVED_OF_THREADS / whole))
    free = _cpus_for(snapshot, loader)
    if plan is None and (free is None or free >= FREE_CPUS):
        wanted = min(MOST_WORKERS, now + max(1, round(UNKNOWN_CPUS if free is None else free)))
    arguments = [f"num_workers={wanted}"] if wanted is not None else []
    if snapshot.device is not None and loader.pin_memory is False:
        arguments.append("pin_memory=True")
    if (wanted or now) and not loader.persistent_workers and len(snapshot.epochs) != 1 and not loader.is_remade:
        arguments.append("persistent_workers=True")
    if wanted is not None:
        changes = tuple(change for change in Change if any(each.startswith(f"{change.label}=") for each in arguments))
        text = f"DataLoader(..., {', '.join(arguments)})"
        yield Action(text, changes, min(1.0, _saved_by_workers(snapshot) / whole))
    if remedy := _remedy(snapshot) or _made_once(snapshot):
        yield remedy._replace(part=remedy.part / whole)
    line = next(_lines_of_making(snapshot), None)
    if plan is None:
        if wanted is None:
            yield _do_less(_hottest_of_making(snapshot))
        return
    in_workers = () if loader.workers is None else loader.workers.lines
    if plan.lock is not None and wanted is None:
        yield Action(LESS_LOCKED, (Change.SHORTER_LOCK,))
    elif line is not None and not now:
        yield from _less_in_functions(snapshot, whole)
    elif now and in_workers and in_workers[0].phase not in (LOCK, SHARED_LOCK):
        hottest, part = in_workers[0], min(1.0, plan.saved_by_less_work(in_workers[0].share) / whole)
        yield Action(f"do less at {hottest.place} {hottest.what}", (Change.LESS_PREPROCESSING,), part)
    elif wanted is None:
        yield _do_less(_hottest_of_making(snapshot))


def _less_in_functions(snapshot: Snapshot, whole: float) -> list[Action]:
    """Return less work in each function with a quarter of the waiting, and in that which has most of it."""
    actions: list[Action] = []
    samples = sum(line.samples for line in snapshot.lines_of_steps(DATA_LOADING))
    for file, function in dict.fromkeys((line.file, line.function) for line in _lines_of_making(snapshot)):
        its = [line for line in snapshot.lines_of_steps(DATA_LOADING) if (line.file, line.function) == (file, function)]
        part = min(1.0, sum(_part_of_waiting(snapshot, each) for each in its))
        numbers = sorted({each.line for each in its})  # its saving is of all of them
        place = its[0].place if len(numbers) == 1 else f"{file}:{numbers[0]}-{numbers[-1]}"
        if may_be_a_quarter(part, samples) or not actions:
            text = f"do less at {place} {its[0].what}"
            actions.append(Action(text, (Change.LESS_PREPROCESSING,), part / whole))
    return sorted(actions, key=lambda action: -action.part)


def _do_less(line: LineStats | None, otherwise: str = PREPROCESS_LESS) -> Action:
    """Return less work at a line, where one is known."""
    text = otherwise if line is None else f"do less at {line.place} {line.what}"
    return Action(text, (Change.LESS_PREPROCESSING,))


def _is_of_tensors(snapshot: Snapshot, loader: LoaderStats) -> bool:
    """Return whether the training makes batches of tensors in memory, sample by sample, and no code of the user's does.

    The data set, or what it is a part of, is a ``TensorDataset``. A ``collate_fn`` of the user's has lines.
    """
    is_single = loader.data_set == WHOLE_TENSORS and not loader.fetches_batches and loader.num_workers == 0
    if not is_single or loader.collate == NO_COLLATE:
        return False
    if loader.collate not in (None, OWN_COLLATE):
        return True
    return _has_lines_of_making(snapshot) and _hottest_of_making(snapshot) is None


def waiting_saved(snapshot: Snapshot) -> float:
    """Return the part of the waiting that workers, a remedy, or doing without the line that takes longest can save."""
    line, remedy = _hottest_of_making(snapshot), _remedy(snapshot) or _made_once(snapshot)
    parts = 0.0 if line is None else _part_of_waiting(snapshot, line), 0.0 if remedy is None else remedy.part
    return max(_saved_by_workers(snapshot), *parts)


def _saved_by_workers(snapshot: Snapshot) -> float:
    """Return the part of the waiting for batches that more workers can save; 1 where no limit is known."""
    loader = slowest_loader(snapshot)
    if loader is not None and _quick_batch_s(snapshot, loader) and not _is_of_tensors(snapshot, loader):
        return SAVED_OF_QUICK
    plan = None if loader is None else _plan(snapshot, loader)
    if loader is None or plan is None:
        return 1.0
    kept = 0.0 if plan.is_better_without or plan.needed > plan.now else saved_by_keeping(snapshot, loader)
    return kept if kept >= BEGINS_FROM else plan.saved * part_of_waiting(snapshot, loader)


def _quick_batch_s(snapshot: Snapshot, loader: LoaderStats) -> float:
    """Return how long the training takes to make a batch, where handing it over takes as long; 0 if it takes longer."""
    fetches = snapshot.sections.get(DATA_LOADING)
    if loader.num_workers != 0 or fetches is None or fetches.p50_s is None or not fetches.count:
        return 0.0
    mean_s = fetches.step_total_s / fetches.count
    return fetches.p50_s if max(fetches.p50_s, mean_s) < QUICK_BATCH_S else 0.0


def _hottest_of_making(snapshot: Snapshot) -> LineStats | None:
    """Return the line that takes longest where the training makes its batches itself; None if unknown.

    Not the line of the loop, which torch's own work for a batch belongs to: it calls nothing, or ``next``. In methods
    that a loader calls, a line without calls reads an array, or decompresses it.
    """
    return next(_lines_of_making(snapshot), None) if _has_lines_of_making(snapshot) else None


def _lines_of_making(snapshot: Snapshot) -> Iterator[LineStats]:
    lines = [line for line in snapshot.lines_of_steps(DATA_LOADING) if line.phase in PHASES]
    making = (line for line in lines if line.called or line.function.endswith(OF_A_DATA_SET))
    return (line for line in making if "next" not in line.called)


def _remedy(snapshot: Snapshot) -> Action | None:
    """Return what the library that makes the batches has for them, and the part of the waiting that it saves."""
    lines, shares = snapshot.lines_of_steps(DATA_LOADING), Counter[str]()
    for line in lines:
        if not any("read_" in name for name in line.called):  # as in read_csv: it may not all fit into memory
            shares.update(line.packages)
    package, _ = max(shares.items(), key=itemgetter(1), default=("", 0.0))
    if package not in REMEDIES or not _has_lines_of_making(snapshot):
        return None
    file, saved, action = REMEDIES[package]
    if package == TOKENIZERS and not _has_same_samples(snapshot):
        return None
    section = snapshot.sections[DATA_LOADING]
    part = min(1.0, shares[package] / section.share) if section.share else 0.0
    is_meant = part >= REMEDY_FROM and any(file in line.inside for line in lines)
    return action._replace(part=saved * part) if is_meant else None


def _made_once(snapshot: Snapshot) -> Action | None:
    """Return keeping the samples that each pass makes again, where all fit into memory. Elements count as float32.

    What puts a batch together depends on its samples. A cache of the data set's own makes later passes quicker.
    """
    loader, shapes, passes = slowest_loader(snapshot), snapshot.program.shapes, _passes(snapshot)
    if loader is None or not loader.samples or not shapes or not _has_same_samples(snapshot):
        return None
    fetches = [epoch.median_fetch_s for epoch in snapshot.epochs if epoch.median_fetch_s]
    is_cached = len(fetches) > 1 and median(fetches[1:]) < CACHED * fetches[0]
    size = loader.samples / passes * prod(shapes[0][1][1:]) * 4
    lines = [line for line in _lines_of_making(snapshot) if line.phase != COLLATE]
    part = sum(_part_of_waiting(snapshot, line) for line in lines) * (1 - 1 / passes)
    if is_cached or size > MOST_KEPT or part < REMEDY_FROM:
        return None
    room = f", about {bytes_text(size)}" if size >= 1 << 20 else ""
    text = f"make each sample once and keep all{room}: each epoch makes the same samples"
    return Action(text, (Change.AHEAD_OF_TIME,), min(1.0, part))


def _passes(snapshot: Snapshot) -> int:
    return max(len(snapshot.epochs), snapshot.program.epochs)


def _has_same_samples(snapshot: Snapshot) -> bool:
    """Return whether several epochs have samples by number, and their making draws no random numbers."""
    loader, program = slowest_loader(snapshot), snapshot.program
    is_again = _passes(snapshot) > 1 and program.same_fetches >= SAME_NEEDED
    return is_again and loader is not None and loader.is_map_style is True


def _has_lines_of_making(snapshot: Snapshot) -> bool:
    """Return whether the training makes its batches itself, and it is known in which lines."""
    loader, lines = slowest_loader(snapshot), snapshot.lines_of_steps(DATA_LOADING)
    return loader is not None and loader.num_workers == 0 and sum(line.samples for line in lines) >= SAMPLES_NEEDED


def _part_of_waiting(snapshot: Snapshot, line: LineStats) -> float:
    section = snapshot.sections.get(DATA_LOADING)
    return min(1.0, line.share / section.share) if section is not None and section.share else 0.0


def plan_of_workers(snapshot: Snapshot) -> Evidence:
    """Return how many workers the slowest loader needs and what they can bring, as evidence; empty if unknown."""
    loader = slowest_loader(snapshot)
    plan = None if loader is None else _plan(snapshot, loader)
    return {} if plan is None else plan.evidence


def _plan(snapshot: Snapshot, loader: LoaderStats) -> WorkerPlan | None:
    free, ranks = _cpus_for(snapshot, loader), 1 if snapshot.machine is None else snapshot.machine.local_ranks
    return worker_plan(snapshot, loader, None if free is None else free / ranks)


def _more_workers(snapshot: Snapshot, loader: LoaderStats) -> Fix:
    free, now = _cpus_for(snapshot, loader), loader.num_workers or 0
    if free is None:
        return Fix(f"Raise DataLoader(num_workers=...) from {now}", (Change.NUM_WORKERS,))
    if free < FREE_CPUS:
        cores = "" if snapshot.machine is None else f"all {snapshot.machine.cores:g} CPUs are busy"
        return Fix(f"More workers would not help: {cores}. {PREPROCESS_LESS}", (Change.LESS_PREPROCESSING,))
    wanted = min(MOST_WORKERS, now + max(1, round(free)))
    return Fix(f"Set DataLoader(num_workers={wanted}), now {now}: {free:.1f} CPUs are free", (Change.NUM_WORKERS,))


def _other_arguments(snapshot: Snapshot, loader: LoaderStats) -> Iterator[Fix]:
    if loader.num_workers == 0 and loader.is_map_style is False:
        yield Fix(
            "divide the samples among them (torch.utils.data.get_worker_info), or each repeats the whole data set"
        )
    if snapshot.device is not None and loader.pin_memory is False:
        yield Fix("set pin_memory=True", (Change.PIN_MEMORY,))
    if loader.num_workers and loader.persistent_workers is False and len(snapshot.epochs) != 1:
        keep = Fix("set persistent_workers=True", (Change.PERSISTENT_WORKERS,))
        yield REMADE.as_next if loader.is_remade else keep
    workers = loader.workers
    if workers is not None and (workers.in_order_wait_share or 0) >= HELD_FROM and workers.busy <= NOT_BUSY:
        yield Fix(
            f"set in_order=False if batches may come in another order: in {workers.in_order_wait_share:.0%} of the "
            "waiting, later ones were ready",
            (Change.OTHER_ORDER,),
        )
    if loader.num_workers and loader.prefetch_factor is not None:
        text = f"raise prefetch_factor from {loader.prefetch_factor} if single samples are slow"
        yield Fix(text, (Change.PREFETCH_FACTOR,))


def _begins_often(snapshot: Snapshot) -> bool:
    """Return whether a good part of the waiting is for the begin of a pass: new workers and their first batch."""
    first_s, waited_s = (
        sum(snapshot.sections[name].step_total_s for name in names if name in snapshot.sections)
        for names in ((FIRST_FETCH, WORKER_START), (DATA_LOADING,))
    )
    return first_s >= BEGINS_FROM * waited_s > 0  # the end of a pass takes about as long as its begin


def stalls_fix(snapshot: Snapshot) -> Fix:
    """Return what to change where some batches are waited for much longer than others."""
    loader = slowest_loader(snapshot)
    free = free_cpus(snapshot) if loader is None else _cpus_for(snapshot, loader)
    if loader is not None and _is_of_tensors(snapshot, loader):
        return WHOLE_BATCHES
    plan = None if loader is None else _plan(snapshot, loader)
    if plan is not None and plan.is_better_without:
        return plan.fix
    if loader is None or (free is not None and free < FREE_CPUS and loader.num_workers) or (plan and plan.lock):
        factor = 2 * ((loader and loader.prefetch_factor) or 2)
        actions = [Action(f"DataLoader(..., prefetch_factor={factor})", (Change.PREFETCH_FACTOR,))]
    else:
        actions = [action._replace(part=1.0) for action in _actions(snapshot, loader, plan)][:1]
    text = "Avoid data stalls: samples of more even cost, a larger prefetch_factor, workers where CPUs are free"
    return Fix(text, tuple(change for action in actions for change in action.changes), tuple(actions))


def transfer_fix(snapshot: Snapshot) -> Fix:
    """Return what to change where moving batches to the device takes long."""
    loader, copies = slowest_loader(snapshot), snapshot.sections.get(DATA_TRANSFER)
    fetched = sum(loader.batches for loader in snapshot.loaders if loader.phase == "train")
    is_pinned = bool(fetched and loader is not None and loader.pin_memory)
    changes = (Change.NON_BLOCKING,) if is_pinned else (Change.PIN_MEMORY, Change.NON_BLOCKING)
    if not fetched:
        how = "Copy from pinned memory (pin_memory() of a tensor that is used again and again) by "
    else:
        how = "Use " if is_pinned else "Set pin_memory=True in the DataLoader and use "
    fix = f"{how}.to(device, non_blocking=True); prefetch batches to the device"
    batches = max(snapshot.steps, fetched)
    if copies is None or not batches or copies.count < 8 * batches:  # the batch of a language model has up to six
        return Fix(fix, changes)
    return Fix(
        f"{fix}; copy at once what belongs together ({copies.count / batches:.0f} copies a step), and make constants "
        "and random numbers where they are used (device=...)",
        (*changes, Change.FEWER_COPIES),
    )


def first_batch_fix(snapshot: Snapshot) -> Fix:
    """Return what to change where the first batch of each pass is slow."""
    loader, first = slowest_loader(snapshot), next(iter(snapshot.hottest(FIRST_FETCH)), None)
    if loader is not None and loader.num_workers and loader.is_remade:
        return joined([REMADE, THEN_KEPT])
    if loader is not None and (not loader.num_workers or loader.persistent_workers):
        why = "the workers are kept already" if loader.num_workers else "there are no workers to start"
        text = f"Check what the data set and its sampler do when a pass begins: {why}"
        return Fix(text, (), (_do_less(first, 'Measure the sampler and the first sample: profile_section("...")'),))
    return KEPT
