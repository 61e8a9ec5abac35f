"""Numbers of descriptors: ours stay out of the way of the program's."""

import os
from typing import Final

LOWEST: Final = 500  # above what programs close when they become daemons, and below usual limits
LOWEST_WITH_A_LIMIT: Final = 3  # where the limit is lower: 0 to 2 are the standard streams, also closed ones


def raised(descriptor: int) -> int:
    """Return the same open file under a high number, and close ``descriptor``; return ``descriptor`` if that fails."""
    try:
        import fcntl  # not on Windows
    except ImportError:
        return descriptor
    for lowest in (LOWEST, LOWEST_WITH_A_LIMIT):
        try:
            high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except (OSError, ValueError):
            continue
        os.close(descriptor)
        return high
    return descriptor
