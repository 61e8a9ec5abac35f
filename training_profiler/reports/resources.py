"""Throughput, machine, accelerators, device time, pauses and loaders in the final summary; nothing that is unknown."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from training_profiler.base.sections import DATA_LOADING
from training_profiler.base.units import (
    BYTES_PER_GIB,
    BYTES_PER_MIB,
    MS_PER_S,
    S_PER_HOUR,
    bytes_text,
    counted,
    duration_text,
    ms_text,
    three_digits,
)
from training_profiler.diagnosis.loaders import loader_mix, loader_slow
from training_profiler.diagnosis.machine import link_of
from training_profiler.diagnosis.pauses import PRODUCTIVE, goodput, lost_in_long_steps_s, pauses
from training_profiler.model.loader_workers import IDLE
from training_profiler.model.snapshot import (
    AFTER_TRAINING,
    OUTSIDE_STEPS,
    GpuStats,
    Level,
    LoaderStats,
    MachineStats,
    SectionStats,
    Snapshot,
    Throughput,
    WorkerStats,
)
from training_profiler.reports.layout import Layout, column_width, fitting, sentence, shortened, table
from training_profiler.reports.sections import WITHOUT_START, largest_shares, table_label

WAIT_SHOWN_FROM: Final = 0.01  # of the time
RATE_SHOWN_FROM: Final = 10 * BYTES_PER_MIB  # a second
POWER_SHOWN_FROM: Final = 0.1
OTHERS_SHOWN_FROM: Final = 0.02  # of the time of a device
# NVML states +-5% for its power readings (nvmlDeviceGetPowerUsage) and nothing for the counter, which sums them.
ENERGY_ERROR: Final = 0.05
LONG_RUN_S: Final = 600.0  # from which on goodput says more than how long the start took
OVERALL_SHOWN_BELOW: Final = 0.9  # of the steps a second in steps: then validation, checkpoints and more take time
_FLOPS_UNITS: Final = (("TFLOP/s", 1.0), ("GFLOP/s", 1e3), ("MFLOP/s", 1e6), ("kFLOP/s", 1e9))  # how many a TFLOP/s


def machine_lines(snapshot: Snapshot) -> list[str]:
    """Return a line each on throughput, machine, accelerators and, if the user gave a price, the cost of all ranks."""
    lines = [] if snapshot.throughput is None else [_throughput_line(snapshot, snapshot.throughput)]
    if snapshot.machine is not None:
        words = (("CPU", _cpu(snapshot.machine)), ("peak RAM", _ram(snapshot.machine)))
        parts = [f"{name} {text}" for name, texts in words if (text := ", ".join(texts))]
        lines += [f"Machine: {'; '.join(parts)}"] if parts else []
        lines += [_gpu_line(gpu) for gpu in snapshot.machine.gpus]
    cost, devices = snapshot.cost_text(snapshot.wall_s), snapshot.device_count
    if cost and devices is not None:
        hours = three_digits(snapshot.wall_s * devices / S_PER_HOUR)
        lines.append(f"Cost: {cost} ({hours} GPU hours on {counted(devices, 'GPU')} at {snapshot.price})")
    return lines


def energy_text(gpu: GpuStats) -> str:
    """Return the energy that a device counted, with its uncertainty; "" where it counts none."""
    if gpu.energy_j is None or gpu.energy_s is None:
        return ""
    wh = gpu.energy_j / S_PER_HOUR
    unit, scale = ("kWh", 1000) if wh >= 1000 else ("Wh", 1)
    error = three_digits(ENERGY_ERROR * gpu.energy_j / S_PER_HOUR / scale)
    return f"{three_digits(wh / scale)} +- {error} {unit} in {duration_text(gpu.energy_s)}"


def rate_texts(snapshot: Snapshot, rates: Throughput, batches: str = "") -> Iterator[str]:
    """Yield steps, ``batches``, samples and tokens a second.

    Steps are counted in step time, and with the time between them where that is much.
    """
    steps, step = f"{three_digits(rates.steps_per_s)} steps/s", snapshot.step
    if step is not None and step.before_s is not None:
        loop_s = snapshot.training_s - step.warmup_s
        if loop_s > 0 and step.settled_count / loop_s <= OVERALL_SHOWN_BELOW * rates.steps_per_s:
            steps += f" ({three_digits(step.settled_count / loop_s)} with time between)"
    yield steps
    if batches:
        yield batches
    if rates.samples_per_s is not None:
        yield f"{three_digits(rates.samples_per_s)} samples/s"
    if rates.tokens_per_s is not None:
        yield f"{three_digits(rates.tokens_per_s)} tokens/s"
    parts = goodput(snapshot)
    if snapshot.wall_s >= LONG_RUN_S and parts is not None and parts[PRODUCTIVE] <= OVERALL_SHOWN_BELOW:
        lost = sorted(((share, name) for name, share in parts.items() if name != PRODUCTIVE), reverse=True)
        yield f"goodput {parts[PRODUCTIVE]:.0%} (else {lost[0][1]} {lost[0][0]:.0%}, {lost[1][1]} {lost[1][0]:.0%})"


def utilization_texts(snapshot: Snapshot) -> Iterator[str]:
    """Yield how busy accelerators are, from the time in which any kernel ran to the model's FLOPs, as one ladder."""
    rates, machine = snapshot.throughput, snapshot.machine
    gpus = () if machine is None else machine.gpus
    busy = [gpu.loop_utilization.mean for gpu in gpus if gpu.loop_utilization is not None]
    ladder = []
    if busy:
        shared = None if machine is None else machine.most_shared
        others = "" if shared is None or shared[0] < OTHERS_SHOWN_FROM else f" (others {shared[0]:.0%})"
        ladder.append(f"GPU busy {sum(busy) / len(busy):.0%}{others}")
        for what in ("SM active", "tensor cores"):
            known = [level.mean for gpu in gpus if (level := dict(active_units(gpu))[what]) is not None]
            ladder += [f"{what} {sum(known) / len(known):.0%}"] if known else []
    if rates is not None and rates.mfu is not None:
        if len(ladder) < 2:
            yield f"MFU {rates.mfu:.0%}"
        else:
            ladder.append(f"MFU {rates.mfu:.0%}")
    if ladder:
        yield " > ".join(ladder)


def _throughput_line(snapshot: Snapshot, rates: Throughput) -> str:
    batches = ""
    if rates.batches_per_s is not None and f"{rates.batches_per_s:.3g}" != f"{rates.steps_per_s:.3g}":
        batches = f"{three_digits(rates.batches_per_s)} batches/s"
    parts = list(rate_texts(snapshot, rates, batches))
    if rates.tflops is not None:
        tflops = rates.tflops
        unit, scale = next((row for row in _FLOPS_UNITS if tflops * row[1] >= 0.1), _FLOPS_UNITS[-1])
        mfu = ""
        if rates.mfu is not None and rates.peak_tflops is not None:
            by = f" by {rates.mfu_by}" if rates.mfu_by else ""
            hfu = "" if rates.hfu is None or rates.hfu == rates.mfu else f", HFU {rates.hfu:.1%} as executed"
            hfu += "," if by or hfu else ""
            mfu = f" (MFU {rates.mfu:.1%}{by}{hfu} of {rates.peak_tflops:g} TFLOP/s, {rates.peak_source})"
        parts.append(f"{three_digits(tflops * scale)} {unit} in {rates.dtype}{mfu}")
    return f"Throughput: {', '.join(parts)}"


def _cpu(machine: MachineStats) -> Iterator[str]:
    if machine.cpu_process is not None:
        of = "" if machine.cores is None else f" of {machine.cores:g} cores"
        yield f"{machine.cpu_process.mean:.2f}{of} busy by this process"
    if machine.cpu_container is not None:
        yield f"{machine.cpu_container.mean:.2f} by its container"
    if machine.cpu_host is not None:
        yield f"host {machine.cpu_host.mean:.0%}"
    if machine.cpu_wait is not None and machine.cpu_wait.mean >= WAIT_SHOWN_FROM:
        yield f"waiting for a CPU {machine.cpu_wait.mean:.0%} of the time"


def _ram(machine: MachineStats) -> Iterator[str]:
    def of(used: Level, total_bytes: int | None) -> str:
        return _gib(used.max) if not total_bytes else f"{used.max / total_bytes:.0%} of {_gib(total_bytes)}"

    if machine.ram_process_bytes is not None:
        yield f"{_gib(machine.ram_process_bytes.max)} in this process"
    if machine.ram_container_bytes is not None:
        yield f"container {of(machine.ram_container_bytes, machine.ram_limit_bytes)}"
    if machine.ram_host_bytes is not None:
        yield f"host {of(machine.ram_host_bytes, machine.ram_host_total_bytes)}"


def active_units(gpu: GpuStats) -> Iterator[tuple[str, Level | None]]:
    """Yield the parts of a device that work, each a share of its time, and what its counters say of it."""
    yield "SM active", gpu.sm_active
    yield "tensor cores", gpu.tensor_active
    yield "memory bandwidth", gpu.dram_active


def _gpu_line(gpu: GpuStats) -> str:
    levels = (
        ("allocated", gpu.allocated_bytes),
        ("reserved", gpu.reserved_bytes),
        ("used by all processes", gpu.used_bytes),
    )
    memory = ", ".join(f"{_gib(level.max)} {what}" for what, level in levels if level is not None)
    of = "" if gpu.total_bytes is None else f" of {_gib(gpu.total_bytes)}"
    parts = [f"peak memory{of}: {memory}"] if memory else []
    if gpu.loop_utilization is not None:
        others = gpu.others_utilization
        by = "" if others is None or others.mean < OTHERS_SHOWN_FROM else f", of other programs {others.mean:.0%}"
        parts.append(f"busy {gpu.loop_utilization.mean:.0%} of the time{by}")
    active = [f"{what} {level.mean:.0%}" for what, level in active_units(gpu) if level is not None]
    parts += [", ".join(active)] if active else []
    for link, rx, tx in (
        ("PCIe", gpu.pcie_rx_bytes_per_s, gpu.pcie_tx_bytes_per_s),
        ("NVLink", gpu.nvlink_rx_bytes_per_s, gpu.nvlink_tx_bytes_per_s),
    ):
        if rx is not None and tx is not None and max(rx.mean, tx.mean) >= RATE_SHOWN_FROM:
            parts.append(f"{link} {bytes_text(rx.mean)}/s in, {bytes_text(tx.mean)}/s out")
    part, link_text = link_of(gpu)
    parts += [f"PCIe of {link_text}"] if part < 1 else []
    if gpu.throttled_power is not None and gpu.throttled_power.mean >= POWER_SHOWN_FROM:
        parts.append(f"at its power limit in {gpu.throttled_power.mean:.0%} of the samples")
    if gpu.temperature_c is not None:
        parts.append(f"peak {gpu.temperature_c.max:.0f} degrees C")
    if gpu.power_w is not None:
        parts.append(f"mean {gpu.power_w.mean:.0f} W")
    if energy := energy_text(gpu):
        parts.append(energy)
    name = f" ({gpu.name})" if gpu.name else ""
    return f"GPU {gpu.index}{name}: {'; '.join(parts) or 'no figures available'}"


def _gib(number_of_bytes: float) -> str:
    gib = number_of_bytes / BYTES_PER_GIB
    return f"{gib:.1f} GiB" if gib >= 10 else f"{gib:.2f} GiB"


# Notes on what the profiler spent, and how it kept to its budget.
ROUTINE: Final = re.compile(
    r"FLOPs|recorder:|CPU time of|.* samples, .* of CPU|.*the profiler's budget|\d+ (periodic|of \d+ epochs)|ending the"
)
ONCE_S: Final = 0.5  # that the first 20 s may cost: what is looked at once, in early steps
SHARE: Final = 0.005  # of the run, that the profiler may cost beside that


def health_notes(snapshot: Snapshot, is_full: bool) -> list[str]:
    """Return sentences on the state of the profiler: all of them, or what a user should act on."""
    health, wall_s = snapshot.health, snapshot.wall_s
    notes = [f"events dropped: {health.dropped}"] if health.dropped else []
    notes += [f"switched off: {part}" for part in health.disabled]
    notes += [note for note in health.notes if is_full or not ROUTINE.match(note)]
    if is_full or health.overhead_s > ONCE_S + SHARE * wall_s:
        share = f" ({health.overhead_s / wall_s:.2%} of the run)" if wall_s else ""
        notes.append(f"cost of the profiler: {health.overhead_s:.3f} s of the training thread{share}")
    return notes


HEADER: Final = "device avg"
HOST: Final = "host"  # in the row of a section whose time was measured on the host alone


def device_cell(section: SectionStats) -> str:
    """Return the cell of a section's row, in ms."""
    if section.device_avg_s is not None:
        return f"{section.device_avg_s * MS_PER_S:.3f}"
    return HOST if section.count else ""


def device_words(snapshot: Snapshot, section: SectionStats) -> str:
    """Return the end of a section's greppable line; "" where nothing was measured on a device."""
    if snapshot.device is None or not section.count:
        return ""
    return f", device={HOST}" if section.device_avg_s is None else f", device_avg={section.device_avg_s:.4f}s"


def device_lines(snapshot: Snapshot) -> list[str]:
    """Return where device time was measured, and how long the device was idle while a batch was fetched."""
    device = snapshot.device
    if device is None:
        return []
    where = f"{device.kind} ({device.name})" if device.name else device.kind
    lines = [f"Device time: {where}, {device.timing}; {device.spans} spans measured"]
    if device.unmeasured:
        reasons = sorted(device.unmeasured.items(), key=lambda reason: (-reason[1], reason[0]))
        counts = ", ".join(f"{reason} {count}" for reason, count in reasons)
        lines[0] += f", {sum(device.unmeasured.values())} not ({counts})"
    fetching = snapshot.sections.get(DATA_LOADING)
    if fetching is not None and fetching.device_avg_s is not None and device.timing != "sync":
        share = snapshot.share_of_step(DATA_LOADING) if snapshot.is_by_device(DATA_LOADING) else None
        of_step = "" if share is None else f"{share:.1%} of step time, "
        lines.append(f"Device waited for input: {of_step}{ms_text(fetching.device_avg_s)} per batch")
    return lines


TRAIN: Final = "train"
MIN_NAME_WIDTH: Final = 8
WORKER_LINES: Final = 5  # shown of each loader
UNSEEN_FROM: Final = 0.01  # of the run
LIKE_TIMED: Final = 0.05  # of the workers' time
SEEN_FROM: Final = 30  # batches; the workers of a shorter run may not have been seen yet
# Of each column, to grep and in the table.
NAMES: Final = ("loader", "batches", "samples", "data", "forward", "backward", "optimizer", "between", "share", "asked")
_HEADERS: Final = (*NAMES[:3], "data\n(ms)", "fwd\n(ms)", "bwd\n(ms)", "opt\n(ms)", "between\n(ms)", *NAMES[8:])


def loader_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return a line for a single training loader; for several a table, or a line each, and what stands out."""
    loaders = snapshot.loaders
    in_workers = [line for loader in loaders for line in _worker_lines(loader, layout)]
    in_workers += [line for text in _work_elsewhere(snapshot) for line in layout.wrap(text)]
    if len([loader for loader in loaders if loader.phase == TRAIN]) < 2:
        return [*(line for loader in loaders for line in layout.wrap(_sentence(loader))), *in_workers]
    cells = [_cells(loader) for loader in loaders]
    kept = [column for column in range(len(NAMES)) if column < 2 or any(row[column] for row in cells)]
    rows = [tuple(row[column] for column in kept) for row in cells]
    if layout.is_lines:
        names = [NAMES[column] for column in kept[1:]]
        lines = [
            f"loader {row[0]}: "
            + ", ".join(f"{name}={cell}" for name, cell in zip(names, row[1:], strict=True) if cell)
            for row in rows
        ]
    else:
        all_headers = [_HEADERS[column] for column in kept]
        fit = fitting(all_headers, rows, layout.width, range(len(kept) - 1, 1, -1), MIN_NAME_WIDTH)
        headers, rows = [all_headers[at] for at in fit], [tuple(row[at] for at in fit) for row in rows]
        columns = list(zip(*rows, strict=True))
        fixed = sum(column_width(header, column) for header, column in zip(headers[1:], columns[1:], strict=True))
        room = max(MIN_NAME_WIDTH, layout.width - fixed)
        lines = table(headers, [(shortened(name, room), *rest) for name, *rest in rows])
    return [
        *layout.wrap("DataLoaders (per batch; opt: per update; between: since the previous batch):"),
        *lines,
        *(line for text in _slow_and_mix(snapshot) for line in layout.wrap(text)),
        *in_workers,
    ]


def _sentence(loader: LoaderStats) -> str:
    batches = "1 batch" if loader.batches == 1 else f"{loader.batches} batches"
    samples = f", {counted(loader.samples, 'sample')}" if loader.samples else ""
    return f"DataLoader {loader_name(loader)}: {batches}{samples}, {duration_text(loader.wait_s)} waiting"


def loader_name(loader: LoaderStats) -> str:
    """Return a loader's name, and whether it is one of validation."""
    return loader.name if loader.phase == TRAIN else f"{loader.name} (validation)"


def _cells(loader: LoaderStats) -> Sequence[str]:
    means_s = [getattr(loader, f"{name}_avg_s") for name in ("data", "forward", "backward", "optimizer", "batch_wait")]
    means_ms = [None if seconds is None else seconds * MS_PER_S for seconds in means_s]
    return (
        loader_name(loader),
        str(loader.batches),
        "" if loader.samples is None else str(loader.samples),
        *("" if ms is None else f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}" for ms in means_ms),
        "" if loader.proportion in (None, 1) else f"{loader.proportion:.1%}",
        "" if loader.requested_proportion is None else f"{loader.requested_proportion:.1%}",
    )


def _worker_lines(loader: LoaderStats, layout: Layout) -> list[str]:
    """Return what the workers of a loader did: how busy they were, the phases, and the lines with most of the work."""
    workers = loader.workers
    begin = f"Workers of loader {loader_name(loader)}:"
    if workers is None:
        # Of loaders that the program marks, no worker is looked at.
        is_known = loader.num_workers and (loader.made_at or loader.name.isdecimal())
        is_worth_a_line = is_known and loader.phase == TRAIN and loader.batches >= SEEN_FROM
        return layout.wrap(f"{begin} no figures of what they do") if is_worth_a_line else []
    queued = f", {ms_text(workers.cpu_wait_avg_s)} of it waiting for a CPU" if workers.cpu_wait_avg_s else ""
    sentences = [
        f"{begin} busy {workers.busy:.0%} of their time; a batch takes {ms_text(workers.batch_avg_s)}{queued} "
        f"({ms_text(workers.cpu_avg_s)} of CPU time, longest {ms_text(workers.batch_max_s)})"
    ]
    if workers.phases and _agree(workers):
        sentences.append(f"Their time: {_shares(workers.phases)}")
    waiting = "of the waiting for a batch,"
    if workers.in_order_wait_share:
        sentences.append(f"In {workers.in_order_wait_share:.0%} {waiting} later batches were ready")
    if workers.pinning_share:
        sentences.append(f"In {workers.pinning_share:.0%} {waiting} the pin-memory thread copied one")
    if workers.memory_bytes is not None:
        growth = workers.memory_growth_bytes or 0
        grown = f", {bytes_text(growth)} more than at first" if growth > 0 else ""
        sentences.append(f"Memory of the largest worker: {bytes_text(workers.memory_bytes)}{grown}")
    lines = [line for text in sentences for line in layout.wrap(text)]
    for line in workers.lines[:WORKER_LINES]:
        end = f"  {line.phase:<9} {line.share:6.1%}"
        room = layout.width - len(end) - 2
        lines.append(f"  {shortened(f'{line.place}  {line.what}', room):<{room}}{end}")
    return lines


def _agree(workers: WorkerStats) -> bool:
    """Return whether samples show about as much work as was timed. Of workers that live shortly, they show little."""
    at_work = 1 - workers.phases.get(IDLE, 0.0)
    # Sampling begins with the first batches, and may be rarer then: two standard errors.
    chance = 2 * (workers.busy * (1 - workers.busy) / workers.samples) ** 0.5 if workers.samples else 1.0
    return abs(at_work - workers.busy) <= max(chance, LIKE_TIMED)


def _work_elsewhere(snapshot: Snapshot) -> Iterator[str]:
    """Yield the batches made in the training itself, and the waits for work whose lines are not sampled."""
    if snapshot.batch_parts:
        yield f"Making batches in the training itself: {_shares(snapshot.batch_parts)}"
    # A queue in front of a data loader of torch is not named, because the loader's workers are observed.
    has_loader = any(loader.num_workers is not None for loader in snapshot.loaders)
    for wait in snapshot.unsampled_waits:
        if wait.share >= UNSEEN_FROM and (wait.in_loader or not has_loader):
            yield (
                f"Not sampled: the training spends {wait.share:.1%} of the run in {wait.what}, at {wait.line}; what "
                "runs behind it has no lines here"
            )


def _shares(phases: Mapping[str, float]) -> str:
    return ", ".join(f"{phase} {share:.1%}" for phase, share in phases.items())


def _slow_and_mix(snapshot: Snapshot) -> Iterator[str]:
    """Yield a sentence on the slow loader, and one on whether the mix is the requested one."""
    slow, mix = (rule(snapshot, snapshot.thresholds) for rule in (loader_slow, loader_mix))
    yield from (sentence(finding.message) for finding in (slow, mix) if finding is not None)
    asked = [loader for loader in snapshot.loaders if loader.phase == TRAIN and loader.requested_proportion is not None]
    if asked and mix is None:
        yield f"The mix is {', '.join(f'{loader.name} {loader.proportion:.1%}' for loader in asked)}, as asked"


SHOWN_FROM_S: Final = 0.5  # a shorter start-up needs no explanation
NEARLY_ALL: Final = 0.9  # of a part: less is said of its longest line
SHOWN_SHARE: Final = 0.03  # of the start-up


def startup_lines(snapshot: Snapshot) -> list[str]:
    """Return what the program did before its first step, each with its longest line; nothing if that is short."""
    startup = snapshot.startup
    if startup is None or startup.total_s < SHOWN_FROM_S:
        return []
    texts = []
    for part in startup.parts:
        if part.seconds >= SHOWN_SHARE * startup.total_s:
            text = f"{table_label(part.name)} {duration_text(part.seconds)}"
            for place, seconds in part.lines[:1]:
                most = "" if seconds >= NEARLY_ALL * part.seconds else f"{duration_text(seconds)} at "
                text += f" ({most}{place})"
            texts.append(text)
    of = "Before the first step" if startup.has_steps else "Without steps, the run"
    return [f"{of} ({duration_text(startup.total_s)}): {', '.join(texts)}"]


def after_lines(snapshot: Snapshot) -> list[str]:
    """Return what the program did after its last step, if that takes a part of the run that matters."""
    after_s = snapshot.after_training_s
    if after_s < max(SHOWN_FROM_S, SHOWN_SHARE * snapshot.wall_s):
        return []
    shares = {name: each.after_s / after_s for name, each in snapshot.sections.items() if name != OUTSIDE_STEPS}
    parts = largest_shares(shares) or "in no section"
    return [f"{sentence(WITHOUT_START[AFTER_TRAINING])} ({duration_text(after_s)}): {parts}"]


SHOWN_FROM: Final = 0.01  # of step time


def pause_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on the pauses that take 1 % of step time or more, and what they explain; none without."""
    step = snapshot.step
    shown = [] if step is None else [pause for pause in pauses(snapshot) if pause.seconds >= SHOWN_FROM * step.total_s]
    if step is None or not shown:
        return []
    texts = []
    for pause in shown:
        least, most = duration_text(pause.min_s), duration_text(pause.max_s)
        between = "" if least == most else f" ({least} to {most})"
        texts.append(f"{pause.cause} {duration_text(pause.seconds)}{between}")
    lost_s = lost_in_long_steps_s(snapshot)
    long = f"; steps took {duration_text(lost_s)} more than as many median ones"
    if lost_s < SHOWN_FROM * step.total_s:
        long = ""
    return [f"Pauses within steps ({duration_text(step.total_s)}): {', '.join(texts)}{long}"]
