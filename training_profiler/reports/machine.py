"""Throughput, the machine, its accelerators and the time on them in the final summary; nothing that is unknown."""

from collections.abc import Iterator
from typing import Final

from training_profiler.base.units import BYTES_PER_GIB, MS_PER_S, S_PER_HOUR, duration_text, ms_text, three_digits
from training_profiler.snapshot.snapshot import GpuStats, Level, MachineStats, SectionStats, Snapshot, Throughput
from training_profiler.tables.sections import DATA_LOADING

WAIT_SHOWN_FROM: Final = 0.01  # of the time
OTHERS_SHOWN_FROM: Final = 0.02  # of the time of a device
# NVML states +-5% for its power readings (nvmlDeviceGetPowerUsage) and nothing for the counter, which sums them.
ENERGY_ERROR: Final = 0.05
OVERALL_SHOWN_BELOW: Final = 0.9  # of the steps a second in steps: then validation, checkpoints and more take time


def machine_lines(snapshot: Snapshot) -> list[str]:
    """Return a line each on throughput, the machine and its accelerators; unknown figures are left out."""
    lines = [] if snapshot.throughput is None else [_throughput_line(snapshot, snapshot.throughput)]
    if snapshot.machine is not None:
        lines += _machine_line(snapshot.machine)
        lines += [_gpu_line(gpu) for gpu in snapshot.machine.gpus]
    return lines + _cost_line(snapshot)


def _cost_line(snapshot: Snapshot) -> list[str]:
    """Return what the run cost so far, for all ranks, if the user gave a price."""
    cost, devices = snapshot.cost_text(snapshot.wall_s), snapshot.device_count
    if not cost or devices is None:
        return []
    hours = snapshot.wall_s * devices / S_PER_HOUR
    gpus = f"{devices} GPU{'s' * (devices != 1)}"
    return [f"Cost: {cost} ({three_digits(hours)} GPU hours on {gpus} at {snapshot.price})"]


def energy_text(gpu: GpuStats) -> str:
    """Return the energy that a device counted, with its uncertainty; "" where it counts none."""
    if gpu.energy_j is None or gpu.energy_s is None:
        return ""
    wh, error_wh = gpu.energy_j / S_PER_HOUR, ENERGY_ERROR * gpu.energy_j / S_PER_HOUR
    unit, scale = ("kWh", 1000) if wh >= 1000 else ("Wh", 1)
    return f"{three_digits(wh / scale)} +- {three_digits(error_wh / scale)} {unit} in {duration_text(gpu.energy_s)}"


def steps_per_s_text(snapshot: Snapshot) -> str:
    """Return steps a second of step time, and with the time between them where that is much; "" if unknown."""
    step, rates = snapshot.step, snapshot.throughput
    if rates is None:
        return ""
    text = f"{three_digits(rates.steps_per_s)} steps/s"
    if step is None or step.before_s is None:
        return text
    loop_s = snapshot.wall_s - step.before_s - step.warmup_s
    if loop_s <= 0 or step.settled_count / loop_s > OVERALL_SHOWN_BELOW * rates.steps_per_s:
        return text
    return f"{text} ({three_digits(step.settled_count / loop_s)} with time between)"


def _throughput_line(snapshot: Snapshot, rates: Throughput) -> str:
    parts = [steps_per_s_text(snapshot)]
    if rates.batches_per_s is not None and f"{rates.batches_per_s:.3g}" != f"{rates.steps_per_s:.3g}":
        parts.append(f"{three_digits(rates.batches_per_s)} batches/s")
    if rates.samples_per_s is not None:
        parts.append(f"{three_digits(rates.samples_per_s)} samples/s")
    if rates.tokens_per_s is not None:
        parts.append(f"{three_digits(rates.tokens_per_s)} tokens/s")
    if rates.tflops is not None:
        unit, scale = _flops_unit(rates.tflops)
        parts.append(f"{three_digits(rates.tflops * scale)} {unit} in {rates.dtype}{_mfu(rates)}")
    return f"Throughput: {', '.join(parts)}"


def _flops_unit(tflops: float) -> tuple[str, float]:
    """Return the largest unit in which the number is at least 0.1, and how many of it make a TFLOP/s."""
    for unit, scale in (("TFLOP/s", 1.0), ("GFLOP/s", 1e3), ("MFLOP/s", 1e6)):
        if tflops * scale >= 0.1:
            return unit, scale
    return "kFLOP/s", 1e9


def _mfu(rates: Throughput) -> str:
    if rates.mfu is None or rates.peak_tflops is None:
        return ""
    return f" (MFU {rates.mfu:.1%} of {rates.peak_tflops:g} TFLOP/s, {rates.peak_source})"


def _machine_line(machine: MachineStats) -> Iterator[str]:
    cpu, ram = list(_cpu(machine)), list(_ram(machine))
    parts = [f"{name} {', '.join(words)}" for name, words in (("CPU", cpu), ("peak RAM", ram)) if words]
    if parts:
        yield f"Machine: {'; '.join(parts)}"


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
    if machine.ram_process_bytes is not None:
        yield f"{_gib(machine.ram_process_bytes.max)} in this process"
    if machine.ram_container_bytes is not None:
        yield f"container {_of(machine.ram_container_bytes, machine.ram_limit_bytes)}"
    if machine.ram_host_bytes is not None:
        yield f"host {_of(machine.ram_host_bytes, machine.ram_host_total_bytes)}"


def _of(used: Level, total_bytes: int | None) -> str:
    return _gib(used.max) if not total_bytes else f"{used.max / total_bytes:.0%} of {_gib(total_bytes)}"


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
        parts.append(f"busy {gpu.loop_utilization.mean:.0%} of the time{_by_others(gpu)}")
    if gpu.temperature_c is not None:
        parts.append(f"peak {gpu.temperature_c.max:.0f} degrees C")
    if gpu.power_w is not None:
        parts.append(f"mean {gpu.power_w.mean:.0f} W")
    if energy := energy_text(gpu):
        parts.append(energy)
    name = f" ({gpu.name})" if gpu.name else ""
    return f"GPU {gpu.index}{name}: {'; '.join(parts) or 'no figures available'}"


def _by_others(gpu: GpuStats) -> str:
    others = gpu.others_utilization
    return "" if others is None or others.mean < OTHERS_SHOWN_FROM else f", of other programs {others.mean:.0%}"


def _gib(number_of_bytes: float) -> str:
    gib = number_of_bytes / BYTES_PER_GIB
    return f"{gib:.1f} GiB" if gib >= 10 else f"{gib:.2f} GiB"


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
    if section.device_avg_s is not None:
        return f", device_avg={section.device_avg_s:.4f}s"
    return f", device={HOST}"


def device_lines(snapshot: Snapshot) -> list[str]:
    """Return where device time was measured, and how long the device waited for input."""
    device = snapshot.device
    if device is None:
        return []
    where = f"{device.kind} ({device.name})" if device.name else device.kind
    line = f"Device time: {where}, {device.timing}; {device.spans} spans measured"
    if device.unmeasured:
        reasons = sorted(device.unmeasured.items(), key=lambda reason: (-reason[1], reason[0]))
        counts = ", ".join(f"{reason} {count}" for reason, count in reasons)
        line += f", {sum(device.unmeasured.values())} not ({counts})"
    return [line, *_waits(snapshot)]


def _waits(snapshot: Snapshot) -> list[str]:
    """Return how long the device was idle while a batch was fetched."""
    section = snapshot.sections.get(DATA_LOADING)
    if section is None or section.device_avg_s is None or snapshot.device is None or snapshot.device.timing == "sync":
        return []
    share = snapshot.share_of_step(DATA_LOADING) if snapshot.is_by_device(DATA_LOADING) else None
    of_step = "" if share is None else f"{share:.1%} of step time, "
    return [f"Device waited for input: {of_step}{ms_text(section.device_avg_s)} per batch"]
