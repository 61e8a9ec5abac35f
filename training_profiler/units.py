"""Every conversion factor of the project, and how a duration is written."""

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000
MS_PER_S = 1_000
S_PER_HOUR = 3600
S_PER_MINUTE = 60
BYTES_PER_GIB = 2**30
BYTES_PER_MIB = 2**20
FLOPS_PER_TFLOP = 1e12
BYTES_PER_GB = 10**9


def seconds_text(seconds: float) -> str:
    """Return a duration with its unit: seconds, and below a millisecond microseconds."""
    return f"{seconds * NS_PER_S / NS_PER_US:.1f}us" if 0 < seconds < 0.001 else f"{seconds:.4f}s"


def bytes_text(count: float) -> str:
    """Return an amount of memory with its unit: GiB, and below a tenth of one MiB."""
    return (
        f"{count / BYTES_PER_GIB:.1f} GiB" if abs(count) >= BYTES_PER_GIB / 10 else f"{count / BYTES_PER_MIB:.1f} MiB"
    )
