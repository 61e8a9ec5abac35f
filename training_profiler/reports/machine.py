"""Lines of the final summary on how much training got done and on what the machine did meanwhile."""

from collections.abc import Iterator

from training_profiler.snapshot.snapshot import GpuStats, Level, MachineStats, Snapshot, Throughput
from training_profiler.units import BYTES_PER_GIB


def machine_lines(snapshot: Snapshot) -> list[str]:
    """Return a line each on throughput, the machine and its accelerators; none on what is not known."""
    lines = [] if snapshot.throughput is None else [_throughput_line(snapshot.throughput)]
    if snapshot.machine is not None:
        lines += _machine_line(snapshot.machine)
        lines += [_gpu_line(gpu) for gpu in snapshot.machine.gpus]
    return lines


def _throughput_line(rates: Throughput) -> str:
    parts = [f"{_three_digits(rates.steps_per_s)} steps/s"]
    if rates.batches_per_s is not None and f"{rates.batches_per_s:.3g}" != f"{rates.steps_per_s:.3g}":
        parts.append(f"{_three_digits(rates.batches_per_s)} batches/s")
    if rates.samples_per_s is not None:
        parts.append(f"{_three_digits(rates.samples_per_s)} samples/s")
    if rates.tflops is not None:
        unit, scale = ("TFLOP/s", 1.0) if rates.tflops >= 0.1 else ("GFLOP/s", 1000.0)
        parts.append(f"{_three_digits(rates.tflops * scale)} {unit} in {rates.dtype}{_mfu(rates)}")
    return f"Throughput: {', '.join(parts)}"


def _mfu(rates: Throughput) -> str:
    if rates.mfu is None or rates.peak_tflops is None:
        return ""
    return f" (MFU {rates.mfu:.1%} of {rates.peak_tflops:g} TFLOP/s, {rates.peak_source})"


def _machine_line(machine: MachineStats) -> Iterator[str]:
    cpu, ram = list(_cpu(machine)), list(_ram(machine))
    parts = [f"{name} {', '.join(words)}" for name, words in (("CPU", cpu), ("RAM", ram)) if words]
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


def _ram(machine: MachineStats) -> Iterator[str]:
    if machine.ram_process_bytes is not None:
        yield f"{_gib(machine.ram_process_bytes.max)} at most in this process"
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
    parts = [f"memory {memory} at most{of}"] if memory else []
    if gpu.utilization is not None:
        parts.append(f"a kernel ran in {gpu.utilization.mean:.0%} of the time")
    if gpu.temperature_c is not None:
        parts.append(f"{gpu.temperature_c.max:.0f} degrees C at most")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w.mean:.0f} W on average")
    name = f" ({gpu.name})" if gpu.name else ""
    return f"GPU {gpu.index}{name}: {'; '.join(parts) or 'nothing is known'}"


def _gib(number_of_bytes: float) -> str:
    gib = number_of_bytes / BYTES_PER_GIB
    return f"{gib:.1f} GiB" if gib >= 10 else f"{gib:.2f} GiB"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"
