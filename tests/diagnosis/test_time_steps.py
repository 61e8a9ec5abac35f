from tests.diagnosis.test_program_rules import ADAM, CPU, run_with
from training_profiler.model.program import CompileFacts, ComputedWeights, ForwardFacts, ProgramFacts, RecurrentFacts

LITTLE, MUCH = 50_000, 500_000
GRU = RecurrentFacts("GRU", 24.0, 0.6, 0.9, True, MUCH, "model.py:10")
OPERATORS = ProgramFacts(ADAM, cpu=CPU, operators=12_000, forward=ForwardFacts(12_000, 0.03, 0.2, "model.py:10", "GRU"))


def with_facts(**facts):
    return run_with(OPERATORS._replace(**facts))


CELL = GRU._replace(kind="GRUCell", part=0.9, loop=0.95, work=LITTLE)
WEIGHTS = ComputedWeights("turn.weight", 1, 8.0, 0.6, 0.7, "model.py:10")
SAYS = {
    "computed-weights": {
        "one weight": with_facts(weights=WEIGHTS),
        "several weights": with_facts(weights=WEIGHTS._replace(weights=3)),
    },
    "time-step-loop": {
        "a layer": with_facts(recurrent=GRU),
        "a cell": with_facts(recurrent=GRU._replace(kind="LSTMCell", work=LITTLE)),
    },
    "small-operators": {
        "no recurrent layer": with_facts(recurrent=None),
        "an input depends on outputs": with_facts(recurrent=GRU._replace(is_known=False)),
    },
}
SILENT = {
    "computed-weights": {
        "none": with_facts(weights=None),
        "it takes no time": with_facts(weights=WEIGHTS._replace(part=0.03, part_of_backward=0.02)),
    },
    "time-step-loop": {
        "an input depends on outputs": with_facts(recurrent=GRU._replace(is_known=False)),
        "a cell that no layer computes faster": with_facts(recurrent=CELL),
        "on CUDA": with_facts(recurrent=GRU, optimizer=ADAM._replace(devices=("cuda",))),
        "compiled": with_facts(recurrent=GRU, compiled=CompileFacts(1, 1.0)),
    },
    "small-operators": {
        "a loop over steps": with_facts(recurrent=GRU),
        "a cell that no layer computes faster": with_facts(recurrent=CELL),
        "operators of weights that are computed again": with_facts(weights=WEIGHTS),
    },
}
