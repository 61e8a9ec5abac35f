"""Order of the calls to the parts of a session: at a start, a fork, SIGTERM and the end."""

import os
import signal

import pytest

from tests.support.life_cycle import calls_of

TRAINING = """
    tp.start_training_profiling(log_every=2)
    with tp.profile_epoch(1):
        for _ in range(3):
            with tp.profile_section("forward_pass"):
                pass
            tp.profile_step()
"""
START = [
    "discard events",  # by the recorder that a section's cost is measured with
    "install shutdown",
    "start line sampler",
    "start device time",
    "start machine sampler",
    "open journal",
]
BEGUN = "wait for files"
STOP_MEASURING = [
    "close capture",
    "close line sampler",
    "close device time",
    "close machine sampler",
    "close instrumentation",
    "journal: interval",
    "wait for files",
    "wait for capture file",
]
FINAL_SUMMARY = [
    "end trackers",
    "wait for trackers",
    "wait for files",
    "print",
    "wait for trackers",
    "write report",
    "close journal",
    "stop threads",
    "remove shutdown",
]
TWO_RANKS = {
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "TORCHELASTIC_RUN_ID": "run",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29512",
    "RECTIFIED_FLOW_PROFILE_RANK_WAIT_S": "0",
}


def test_order_from_start_over_steps_to_interpreter_exit(tmp_path):
    calls, status = calls_of(tmp_path, TRAINING)
    steps = ["print", "journal: interval", "journal: epoch begin", "choose trackers", "journal: interval", "print"]
    epoch_end = ["journal: interval", "journal: epoch end", "print"]
    assert calls == [*START, "choose trackers", BEGUN, *steps, *epoch_end, *STOP_MEASURING, *FINAL_SUMMARY]
    assert status == 0


def test_order_at_sigterm(tmp_path):
    program = """
        import os, signal
        tp.start_training_profiling()
        tp.profile_step()
        os.kill(os.getpid(), signal.SIGTERM)
    """
    calls, status = calls_of(tmp_path, program)
    assert calls == [*START, "choose trackers", BEGUN, "choose trackers", "print", *STOP_MEASURING, *FINAL_SUMMARY]
    assert status == -signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_order_in_a_forked_child(tmp_path):
    program = """
        import os
        tp.start_training_profiling()
        tp.profile_step()
        child = os.fork()
        if not child:
            tp.profile_step()
            os._exit(0)
        os.waitpid(child, 0)
        tp.stop_training_profiling()
    """
    calls, _ = calls_of(tmp_path, program)
    forked = [
        "child: forget capture",
        "child: forget line sampler",
        "child: forget device time",
        "child: forget machine sampler",
        "child: forget trackers",
        "child: forget rank channel",
        "child: remove shutdown",
        "child: forget instrumentation",
    ]
    assert calls == [
        *START,
        "choose trackers",
        BEGUN,
        "choose trackers",
        "print",
        *forked,
        *STOP_MEASURING,
        *FINAL_SUMMARY,
    ]


def test_order_if_a_section_begins_the_run_before_start(tmp_path):
    program = """
        with tp.profile_section("forward_pass"):
            pass
        tp.profile_step()
        tp.start_training_profiling(log_every=5)
        tp.stop_training_profiling()
    """
    calls, _ = calls_of(tmp_path, program)
    first = [*START, BEGUN, "choose trackers", "print"]  # a run that is killed in its first step leaves a folder
    again = ["install shutdown", "start line sampler", "start device time", "start machine sampler", "open journal"]
    assert calls == [*first, *again, "choose trackers", *STOP_MEASURING, *FINAL_SUMMARY]


def test_order_on_rank_0_of_two(tmp_path):
    calls, _ = calls_of(tmp_path, TRAINING, **TWO_RANKS, RANK="0")
    first_flush = ["print", "journal: interval", "journal: rank", "start rank channel"]
    begin_training = ["open journal", "start rank channel", "choose trackers"]
    steps = ["journal: epoch begin", *begin_training, "journal: interval", "print"]
    epoch_end = ["journal: interval", "journal: epoch end", "print"]
    exchange = ["journal: rank", "close rank channel"]
    begin = [*START, "choose trackers", BEGUN, *first_flush, *steps, *epoch_end]
    assert calls == [*begin, *STOP_MEASURING, *exchange, *FINAL_SUMMARY]


def test_order_on_rank_1_of_two(tmp_path):
    calls, _ = calls_of(tmp_path, TRAINING, **TWO_RANKS, RANK="1")
    first_flush = ["journal: interval", "journal: rank", "start rank channel", "send to rank 0"]
    begin_training = ["open journal", "start rank channel"]
    steps = ["journal: epoch begin", *begin_training, "journal: interval", "journal: epoch end"]
    # The journal closes first: it may find the run's folder, which the channel then carries to rank 0.
    end = ["journal: rank", "send to rank 0", "close journal", "close rank channel", "stop threads", "remove shutdown"]
    assert calls == [*START, BEGUN, *first_flush, *steps, *STOP_MEASURING, *end]
