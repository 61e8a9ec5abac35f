import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch

from tests.trials import changes
from tests.trials.test_process import wait_until
from training_profiler.base.switch import SWITCH, TRIAL_PLAN, launch_environment
from training_profiler.base.units import NS_PER_S
from training_profiler.trials import child
from training_profiler.trials.child import BlockRunner, ChildPlan, OwnChildren, address_of
from training_profiler.trials.launcher import BOOTSTRAP


class FakeSession:
    """Hands out blocks of known lengths."""

    def __init__(self, clock, blocks):
        self.messages = []
        self._clock, self._blocks = clock, iter(blocks)

    def send(self, **message):
        self.messages.append(message)

    def next_block(self):
        self._clock.now_ns += 100 * NS_PER_S  # others run
        return next(self._blocks)


def run_steps(runner, clock, seconds, losses=()):
    for at, step_s in enumerate(seconds):
        clock.now_ns += int(step_s * NS_PER_S)
        if losses:
            runner.note_loss((losses[at],))
        runner.end_step()


def test_a_block_leaves_its_first_step_and_the_time_of_others_out(clock):
    session = FakeSession(clock, [4, 3, 2])
    runner = BlockRunner(ChildPlan("", "", [], 3), torch, lambda: session, clock)
    run_steps(runner, clock, [2, 1, 1, 50, 1, 2, 3, 50, 5, 7])
    shown = [(message["step_s"], message["warmup_s"]) for message in session.messages]
    assert shown == [(None, 4.0), (2.0, None), (6.0, None)]


def test_a_rare_long_step_counts_as_three_typical_ones_beside_the_mean(clock):
    session = FakeSession(clock, [6, 2])
    run_steps(BlockRunner(ChildPlan("", "", [], 1), torch, lambda: session, clock), clock, [1, 9, 1, 1, 30, 1, 2])
    assert [(message["step_s"], message["typical_s"]) for message in session.messages] == [(None, None), (7.0, 1.6)]


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "children", "alone_s"),
    [
        (5, (1, 4), [], (4.0, 4.0)),  # the second of the steps was off its CPU for 6 s, of which it waited for 3
        (5, (1, 11), [], (2.5, 2.5)),  # clocks differ: never less than what it ran
        (6, (1, 4), [], None),  # another thread ran
        (5, (1, 4), ["a worker"], None),
        (5, (None, None), [], None),
    ],
)
def test_what_a_step_takes_alone_is_known_of_a_single_thread(clock, ran_s, waited_s, children, alone_s):
    ran = iter([0, 0, 1 * NS_PER_S, 3 * NS_PER_S, 6 * NS_PER_S])
    waits = [each and each * NS_PER_S for each in waited_s]
    readings = iter([(0, None), (0, None), (0, waits[0]), (ran_s * NS_PER_S, waits[1])])
    others = SimpleNamespace(stop=lambda: True, resume=lambda: None, known=children)
    session, clocks = FakeSession(clock, [3, 2]), {"thread_clock": ran.__next__, "read_cpu": readings.__next__}
    runner = BlockRunner(ChildPlan("", "", [], 1), torch, lambda: session, clock, others, **clocks)
    run_steps(runner, clock, [1, 1, 2, 9])
    assert session.messages[-1]["alone_s"] == alone_s


def test_what_the_training_has_started_is_stopped_from_the_end_of_a_block_to_the_next(clock):
    done = []

    class Noting(FakeSession):
        def send(self, **message):
            done.append("sends")
            super().send(**message)

        def next_block(self):
            done.append("waits")
            return super().next_block()

    children = SimpleNamespace(
        stop=lambda: done.append("stops") or True, resume=lambda: done.append("resumes"), known=[]
    )
    session = Noting(clock, [2, 2])
    runner = BlockRunner(ChildPlan("", "", [], 2), torch, lambda: session, clock, children)
    run_steps(runner, clock, [1, 1, 1])
    assert done == ["stops", "sends", "waits", "resumes"]
    assert [message["holds"] for message in session.messages] == [True]


def test_processes_that_this_one_has_started_are_stopped_and_go_on():
    started = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        children, process = OwnChildren(), psutil.Process(started.pid)
        for _ in range(2):
            assert children.stop()
            assert wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
            children.resume()
            assert wait_until(lambda: process.status() != psutil.STATUS_STOPPED)
        started.kill()
        started.wait()
        children.stop()
        children.resume()
    finally:
        started.kill()
        started.wait()


def test_the_losses_of_each_step_are_exact_and_kept_before_they_change(clock):
    session = FakeSession(clock, [2])
    runner = BlockRunner(ChildPlan("", "", [], 2), torch, lambda: session, clock)
    loss = torch.tensor(0.1, requires_grad=True)
    total = (loss * 3).sum()
    runner.note_loss(total)
    with torch.no_grad():
        total /= 2
    runner.note_loss([torch.tensor([1.0, 2.0])])
    runner.end_step()
    runner.note_loss((torch.tensor(float("nan")),))
    runner.end_step()
    exact = float(torch.tensor(0.1).mul(3)).hex()
    assert session.messages[0]["losses"] == [[exact, (3.0).hex()], ["nan"]]
    assert session.messages[0]["rank"] == 0


def test_changes_are_applied_by_name(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    child.apply(changes.__name__, ["sleep=0.5"])
    time.sleep(3)
    assert slept == [1.5]


@pytest.mark.parametrize(("given", "kind"), [(subprocess.DEVNULL, "EmptyInput"), (subprocess.PIPE, "FileIO")])
def test_reads_of_standard_input_are_reported_unless_the_program_gave_its_child_another_one(given, kind):
    program = "import sys; print(type(sys.stdin.buffer.raw).__name__, sys.stdin.fileno())"
    variables = launch_environment(str(BOOTSTRAP), is_python=True) | {SWITCH: "0", TRIAL_PLAN: "plan.json"}
    done = subprocess.run([sys.executable, "-c", program], env=variables, stdin=given, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{kind} 0\n", "")


def test_a_long_path_of_a_socket_becomes_a_short_address(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    (folder / "socket").write_text("here")
    with address_of(str(folder / "socket")) as address:
        assert len(address) <= 100
        assert open(address).read() == "here"  # noqa: SIM115
    with address_of("/tmp/socket") as address:
        assert address == "/tmp/socket"
