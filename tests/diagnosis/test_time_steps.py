import pytest

from tests.diagnosis.test_program_rules import ADAM, CPU, findings_of, run_with
from training_profiler.diagnosis.small_operators import AROUND_TAKES, saved_by_whole_sequences
from training_profiler.snapshot.program import CompileFacts, ForwardFacts, ProgramFacts, RecurrentFacts

LITTLE, MUCH = 50_000, 500_000
GRU = RecurrentFacts("GRU", 24.0, 0.6, 0.9, True, MUCH, "model.py:10")
OPERATORS = ProgramFacts(ADAM, cpu=CPU, operators=12_000, forward=ForwardFacts(12_000, 0.03, 0.2, "model.py:10", "GRU"))


def found(**facts):
    return findings_of(run_with(OPERATORS._replace(**facts)))


def test_a_layer_with_a_call_for_each_step_is_to_have_them_all():
    finding = found(recurrent=GRU)["time-step-loop"]
    assert "GRU (model.py:10) is called 24 times a step, for one step of a sequence each" in finding.message
    assert finding.fix.startswith("Let GRU compute a whole batch or sequence at once")
    assert finding.losses == "differ by rounding"
    assert finding.potential_saving_s / 9.0 == pytest.approx(0.6 * 0.25 + 0.3 * (1 - AROUND_TAKES.much))


def test_a_cell_is_replaced_by_its_layer():
    finding = found(recurrent=GRU._replace(kind="LSTMCell", work=LITTLE))["time-step-loop"]
    assert finding.fix.startswith("Use LSTM instead of LSTMCell and let it compute a whole batch or sequence at once")
    assert finding.potential_saving_s / 9.0 == pytest.approx(0.6 * 0.88 + 0.3 * (1 - AROUND_TAKES.little))


def test_it_is_the_only_finding_about_these_operators():
    assert "small-operators" in found(recurrent=None)
    assert "small-operators" not in found(recurrent=GRU)


def test_an_input_that_depends_on_outputs_needs_the_loop():
    findings = found(recurrent=GRU._replace(is_known=False))
    assert "time-step-loop" not in findings
    fix = findings["small-operators"].fix
    assert fix.startswith("GRU is called for each step of a sequence, which is needed where an input depends on")
    assert fix.endswith("torch.compile may fuse them")


def test_operators_of_a_cell_that_no_layer_computes_faster_are_not_saved():
    cell = GRU._replace(kind="GRUCell", part=0.9, loop=0.95, work=LITTLE)
    assert not {"time-step-loop", "small-operators"} & set(found(recurrent=cell))


def test_it_is_silent_for_devices_and_compiled_models():
    assert "time-step-loop" not in found(recurrent=GRU, optimizer=ADAM._replace(devices=("cuda",)))
    assert "time-step-loop" not in found(recurrent=GRU, compiled=CompileFacts(1, 1.0))


@pytest.mark.parametrize("facts", [None, GRU._replace(is_known=False), GRU._replace(kind="Own", loop=0.6)])
def test_what_is_not_known_saves_nothing(facts):
    assert saved_by_whole_sequences(facts) == 0.0
