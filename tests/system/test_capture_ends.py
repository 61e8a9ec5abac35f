"""Capture windows that end early or never open: the training goes on, and the reason is reported."""

import pytest

from tests.system.launching import execute_forked
from tests.system.scripts import Outcome, report_command
from tests.system.test_capture import FAKE_CLOCK, PLAN, annotations, captures, health_notes, leftovers, trace, trained

pytestmark = pytest.mark.programs  # most take over 3 s
START = "start_training_profiling(log_every=1000)\n"
THEIRS_AFTER = "with theirs() as prof: train(3)\nprint(len(names(prof)) > 20)"
# Sends a signal at the worst time: while torch starts or stops recording.
SIGNALLED = """
original, sent = torch.profiler.profile.{name}, []
def slow(self):
    original(self)
    if not sent:
        sent.append(1); os.kill(os.getpid(), signal.{signal}); time.sleep(0.01)
torch.profiler.profile.{name} = slow
"""


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("train(5); alone(train, 20); train(5)", ["step5-5-rank0.pt.trace.json.gz"]),
        ("train(4); alone(train, 20); train(5)", []),
    ],
)
def test_window_ends_if_steps_move_to_another_thread(tmp_path, text, files):
    outcome = trained(tmp_path, f"{START}{text}\n{THEIRS_AFTER}")
    assert "True\n" in outcome.stdout
    assert captures(outcome) == files
    assert outcome.report["health"]["disabled"] == []
    assert "when steps came to end on another thread" in health_notes(outcome)


def test_profiler_of_another_thread_may_start_at_any_moment(tmp_path):
    # The worst moment is while a window opens: torch takes 50 ms to start, and the other thread runs meanwhile.
    text = (
        "import random\n"
        "is_over, count = False, 0\n"
        "def other():\n"
        "    global count\n"
        "    while not is_over:\n"
        "        time.sleep(random.random() * 0.2)\n"
        "        with theirs() as prof: torch.randn(8, 8).mul(2); time.sleep(random.random() * 0.01)\n"
        "        prof.export_chrome_trace('theirs.json'); count += 'aten::mul' in names(prof)\n"
        "original = torch.profiler.profile.start\n"
        "def slow(self): original(self); time.sleep(0.2 * (threading.current_thread() is threading.main_thread()))\n"
        "torch.profiler.profile.start = slow\n"
        "thread = threading.Thread(target=other); thread.start()\n"
        "while count <= 5: step()\n"
        "is_over = True; thread.join(); train(3); print(count > 5)"
    )
    outcome = trained(tmp_path, START + text, "every=14,length=6,windows=500")
    assert "True\n" in outcome.stdout
    assert outcome.report["health"]["disabled"] == []


def test_window_whose_first_step_reaches_a_limit_is_reported_as_dropped(tmp_path):
    text = "train(20, lambda: [time.sleep(0.01) for _ in range(80)] if len(losses) == 4 else None)"
    outcome = trained(tmp_path, START + text, "steps=5-8,seconds=0.3")
    assert captures(outcome) == []
    assert "a capture window was dropped: step 5 was not over after 0.3 s (seconds=)" in health_notes(outcome)


def test_interrupted_window_does_not_count_against_the_budget(tmp_path):
    text = "train(5)\nwith theirs() as prof: train(2)\ntrain(200, lambda: time.sleep(0.01))"
    outcome = trained(tmp_path, START + text, "steps=5-8,windows=1")
    assert len(captures(outcome)) == 1
    assert "no further capture windows" not in health_notes(outcome)


@pytest.mark.parametrize("name", ["start", "stop"])
def test_sigterm_while_a_window_opens_or_ends_kills_the_process(tmp_path, name):
    patience = "import training_profiler.torch_capture.controller as controller; controller.JOIN_S = 600\n"
    text = SIGNALLED.format(name=name, signal="SIGTERM") + patience + START + "train(20)"
    outcome = trained(tmp_path, text, status=-15)
    assert "Traceback" not in outcome.stderr
    assert (captures(outcome), outcome.report["health"]["disabled"]) == ([], [])
    assert "a capture window of step 5 on was dropped: the run ended in it" in health_notes(outcome)
    assert outcome.report["wall_s"] < 300  # no wait for a file that will not be written


@pytest.mark.parametrize("name", ["start", "stop"])
def test_ctrl_c_while_a_window_opens_or_ends_can_be_caught(tmp_path, name):
    text = SIGNALLED.format(name=name, signal="SIGINT") + START
    text += "try: train(20)\nexcept KeyboardInterrupt: print('caught')\ntrain(10)\n"
    outcome = trained(tmp_path, text + THEIRS_AFTER)
    assert "caught\n" in outcome.stdout
    assert "True\n" in outcome.stdout
    assert leftovers(outcome) == []


STOPPED = "lambda: alone(stop_training_profiling) if len(losses) == 5 else None"
BROKEN = """import training_profiler.torch_capture.window as window
def broken(self): raise RuntimeError('planted')
window.Window.stop = broken
"""


@pytest.mark.parametrize(
    ("text", "disabled"),
    [(f"train(20, {STOPPED})", []), (f"{BROKEN}train(20)", ["capture (RuntimeError: planted)"])],
    ids=["stopped by another thread", "an internal error"],
)
def test_however_a_run_ends_in_a_window_no_profiler_is_left_behind(tmp_path, text, disabled):
    recording = "print('recording', torch.autograd.profiler._is_profiler_enabled)"
    outcome = trained(tmp_path, f"{START}{text}\n{recording}\n{THEIRS_AFTER}")
    assert "recording False\nTrue\n" in outcome.stdout
    assert captures(outcome) == []
    assert outcome.report["health"]["disabled"] == disabled


def test_captured_steps_are_excluded_from_step_time(tmp_path):
    text = (
        "def each():\n"
        "    advance(0.5 if 4 <= len(losses) < 8 else 0.02)\n"
        "train(9, each)\n"
        # The file is written beside further steps, which are slowed until then; it waits for the spans they send.
        "while any('capture' in t.name for t in threading.enumerate()): time.sleep(0.01); train(1, each)\n"
        "train(50, each)"
    )
    outcome = trained(tmp_path, START + text, before=FAKE_CLOCK)
    step = outcome.report["step_time"]
    assert step["disturbed_count"] >= 4
    assert step["max_s"] < 0.5
    assert step["avg_s"] < step["settled_s"] / step["settled_count"]
    from_files = report_command(tmp_path, str(outcome.folder), "--full")
    assert f"{step['disturbed_count']} steps in or after a capture window excluded" in from_files.stdout


def test_steps_before_the_window_are_not_in_the_trace(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(64, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for x in torch.utils.data.DataLoader(torch.randn(400, 64), batch_size=8):\n"
        "    model(x).square().mean().backward(); optimizer.step(); optimizer.zero_grad()\n"
    )
    outcome = Outcome(*execute_forked(tmp_path, "train.py", **{PLAN: "steps=2-4"}), tmp_path)
    assert outcome.status == 0, outcome.stderr
    (name,) = captures(outcome)
    steps = annotations(trace(outcome, name), "ProfilerStep#")
    assert len(steps) == 3
    assert all(step["dur"] > 0 for step in steps)
