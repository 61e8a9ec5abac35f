"""Ports for groups of ranks that run side by side."""

import os
import random
import socket
from typing import Final

# Below the range from which Linux hands out ports, so an outgoing connection never takes one of these.
FIRST: Final = 12_000
PER_WORKER: Final = 1_000
WORKERS: Final = 20


def free_port() -> int:
    """Return a free port of 127.0.0.1 from the range of this pytest worker, so that workers never share one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    first = FIRST + worker * PER_WORKER
    for port in random.SystemRandom().sample(range(first, first + PER_WORKER), PER_WORKER):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {first} and {first + PER_WORKER - 1}")
