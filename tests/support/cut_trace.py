"""Cuts a trace as a recording does that begins or ends while the device is at work.

Events of the host that begin outside of the window are left out. Of work that was launched before the window, CUDA
records what runs in it; HIP records none, and the device seems idle until the first work that was launched in it.
"""

from tests.support.traces import Trace

WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def cut(trace: Trace, begin_us: float, end_us: float = 1e15, *, has_earlier_work: bool = True) -> Trace:
    """Return what a recording from ``begin_us`` to ``end_us`` has of a trace."""
    called_us = {
        event["args"]["correlation"]: event["ts"] for event in trace.events if "correlation" in event["args"]
        and event["cat"] not in WORK
    }  # fmt: skip

    def is_recorded(event):
        if event["cat"] not in WORK:
            return begin_us <= event["ts"] < end_us
        is_earlier = called_us.get(event["args"].get("correlation"), begin_us) < begin_us
        runs = event["ts"] + event["dur"] > begin_us and event["ts"] + event["dur"] <= end_us
        return runs and (has_earlier_work or not is_earlier)

    part = Trace(**trace.top)
    part.events = [event for event in trace.events if is_recorded(event)]
    return part
