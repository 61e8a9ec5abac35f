"""The rule about forward passes that run Python instead of operators of torch."""

from dataclasses import replace

import pytest

from tests.diagnosis.test_program_rules import ADAM, CPU, LONG, findings_of, run_with
from training_profiler.diagnosis.in_python import loops
from training_profiler.snapshot.program import CompileFacts, ForwardFacts, ProgramFacts
from training_profiler.snapshot.snapshot import LineStats, Snapshot


def test_a_forward_pass_outside_of_operators_is_found():
    found = findings_of(run_with(ProgramFacts(ADAM, cpu=CPU, operators=300, forward=LONG)))
    assert next(iter(found)) == "python-in-forward"
    finding = found["python-in-forward"]
    assert "80% of the forward pass is not in torch's operators" in finding.message
    assert finding.potential_saving_s == pytest.approx(3.2)
    assert finding.losses == "same bit for bit, if the data stays the same"


@pytest.mark.parametrize(
    "facts",
    [
        ProgramFacts(ADAM),  # not counted
        ProgramFacts(ADAM, forward=LONG._replace(operators_s=0.03)),
        ProgramFacts(ADAM, forward=LONG._replace(operators=800)),  # many operators, which is another finding
        ProgramFacts(ADAM, forward=LONG._replace(calls_s=0.01)),  # operators between modules take the rest
        ProgramFacts(ADAM, forward=LONG, compiled=CompileFacts(1, 2.0)),
        ProgramFacts(ADAM._replace(devices=("cuda",)), forward=LONG),  # the device may be busy instead
        ProgramFacts(None, forward=LONG),
    ],
)
def test_other_forward_passes_are_not_called_python(facts):
    assert "python-in-forward" not in findings_of(run_with(facts))


def test_a_delay_in_the_counted_step_is_not_python():
    run = run_with(ProgramFacts(ADAM, forward=LONG))
    shortest = replace(run.sections["forward_pass"], min_s=0.012)
    assert "python-in-forward" not in findings_of(replace(run, sections={**run.sections, "forward_pass": shortest}))


def test_the_part_in_python_is_that_of_the_forward_pass_which_shows_it():
    """On a busy machine the mean is longer than the shortest forward pass; the part is not smaller there."""
    run = run_with(ProgramFacts(ADAM, forward=LONG))
    shortest = replace(run.sections["forward_pass"], min_s=0.030)
    finding = findings_of(replace(run, sections={**run.sections, "forward_pass": shortest}))["python-in-forward"]
    assert "73% of the forward pass is not in torch's operators" in finding.message
    assert finding.evidence["share_of_forward"] == pytest.approx(22 / 30)


MANY = LONG._replace(operators=800)  # what is between them may take all of the rest


def with_loop(part: float, facts: ForwardFacts, samples: int = 100, called: str = "<python>") -> Snapshot:
    """Return a run in whose forward pass a line runs a loop in Python for this part of the time."""
    run = run_with(ProgramFacts(ADAM, forward=facts))
    share = run.sections["forward_pass"].share
    line = LineStats("model.py", 9, "Net.forward", share, samples, called={called: part * share})
    return replace(run, lines={"forward_pass": (line,)})


def test_a_sampled_loop_in_python_is_found_among_many_operators():
    finding = findings_of(with_loop(0.5, MANY))["python-in-forward"]
    assert "50% of the forward pass" in finding.message
    assert "model.py:9 Net.forward" in finding.message


def with_too_many(uncounted: int, called: str = "<python>") -> Snapshot:
    """Return a run in whose forward pass a layer takes half of the time, and a loop that fills a mask 40%."""
    run = run_with(ProgramFacts(ADAM, uncounted=uncounted))
    share = run.sections["forward_pass"].share
    layer = LineStats("model.py", 38, "Block.forward", 0.5 * share, 100, called={"self.attn": 0.5 * share})
    # What the loop stores has no call: mask[i, j] = 0.
    loop = LineStats("model.py", 9, "mask", 0.4 * share, 90, called={called: 0.1 * share})
    return replace(run, lines={"forward_pass": (layer, loop)})


def test_a_sampled_loop_is_found_where_its_operators_were_too_many_to_be_counted():
    found = findings_of(with_too_many(15_000))["python-in-forward"]
    assert found.message == (
        "40% of the forward pass is in loops of Python that start short operators, over 15,000 in a step (16.0 ms per "
        "step); above all in model.py:9 mask"
    )
    assert found.potential_saving_s == pytest.approx(1.6)


@pytest.mark.parametrize("run", [with_too_many(0), with_too_many(15_000, called="self.attn")])
def test_without_counted_operators_only_loops_of_too_many_are_known(run):
    assert "python-in-forward" not in findings_of(run)


@pytest.mark.parametrize("called", ["random.sample", "np.random.choice", "torch.tensor", "re.findall"])
def test_functions_that_are_no_operators_of_torch_count_as_python(called):
    assert "50% of the forward pass" in findings_of(with_loop(0.5, MANY, called=called))["python-in-forward"].message


def with_a_small_batch(median_s: float) -> Snapshot:
    """Return a run with a loop in its forward passes, of which the last is a tenth of the others."""
    run = with_loop(0.5, LONG._replace(operators=80, operators_s=0.0035))
    forward = replace(run.sections["forward_pass"], min_s=0.004, p50_s=median_s)
    return replace(run, sections={**run.sections, "forward_pass": forward})


def test_a_sampled_part_is_one_of_all_forward_passes_and_not_of_the_shortest():
    run = with_a_small_batch(median_s=0.05)  # as long as the counted one
    found = findings_of(run)["python-in-forward"]
    assert found.potential_saving_s == pytest.approx(0.5 * run.sections["forward_pass"].settled_total_s)


def test_what_a_delayed_step_took_is_not_taken_for_usual():
    assert "python-in-forward" not in findings_of(with_a_small_batch(median_s=0.02))


@pytest.mark.parametrize(
    "run",
    [
        with_loop(0.2, MANY),
        with_loop(0.9, MANY, called="torch.roll"),
        with_loop(0.9, MANY, called="random_mask"),  # a function of the program
        with_loop(0.9, MANY._replace(operators_s=0.035), called="np.dot"),  # there is no time outside of operators
        with_loop(0.5, MANY, samples=20),
        with_loop(0.9, MANY._replace(operators_s=0.035)),  # a loop of operators
    ],
)
def test_other_loops_are_not_called_python(run):
    assert "python-in-forward" not in findings_of(run)


@pytest.mark.parametrize(("turns", "is_loop"), [(0.15, True), (0.05, False)])
def test_operators_without_a_call_belong_to_a_loop_where_its_turns_are_sampled(turns, is_loop):
    share = 0.4
    line = LineStats("model.py", 9, "mask", share, 100, called={"<python>": turns * share, "self.attn": 0.25 * share})
    run = replace(run_with(ProgramFacts(ADAM)), lines={"forward_pass": (line,)})
    assert sum(each.share for each in loops(run)) == pytest.approx(0.75 * share if is_loop else 0.0)
