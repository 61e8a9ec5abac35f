"""How many samples an evaluation gives the model at once, and after which batches."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_profiler.instrumentation.loop_detection.input_sizes import CALLS, EvaluatedRows

MODEL = torch.nn.Linear(4, 1).eval()


def evaluated(*after_each: list[int]) -> EvaluatedRows:
    """Return the rows of a training on 64 samples at once, and of forward passes after each batch of an evaluation."""
    rows = EvaluatedRows()
    rows.add_training((64, 4), 0)
    loader_pass: Any = SimpleNamespace(fetches=0)
    for counts in after_each:
        loader_pass.fetches += 1
        for count in counts:
            rows.add_evaluation(MODEL, (torch.zeros(count, 3, 2),), loader_pass)
    return rows


def test_single_samples_are_counted_by_batch() -> None:
    facts = evaluated([1, 1, 1], [1], [64, 2]).facts()
    assert facts is not None
    assert (facts.calls, facts.few, facts.batches, facts.few_batches, facts.most) == (6, 5, 3, 3, 3)
    assert (facts.rows, facts.elements, facts.training_rows, facts.training_elements) == (6 / 5, 6, 64, 4)


IDS = torch.zeros(2, 8)
# Inputs of one more pass; the rows and elements that count, if they are few.
INPUTS = {
    "the largest tensor of a dictionary": (({"ids": IDS, "mask": torch.zeros(2)},), (2, 8)),
    "of a list": (([IDS], 3, None), (2, 8)),
    "of some arguments": ((IDS, "name", torch.tensor(0.0)), (2, 8)),
    "many rows": ((torch.zeros(64, 3),), None),
    "no tensor": (("text", {}, []), None),
}


@pytest.mark.parametrize(("inputs", "found"), INPUTS.values(), ids=INPUTS)
def test_the_largest_tensor_counts_wherever_it_is(inputs: tuple[Any, ...], found: tuple[int, int] | None) -> None:
    rows = evaluated()
    rows.add_evaluation(MODEL, inputs, None)
    facts = rows.facts()
    assert (None if facts is None else (facts.rows, facts.elements)) == found
    assert rows.calls == 1


FROZEN = torch.nn.Linear(4, 1).eval().requires_grad_(False)


@pytest.mark.parametrize("module", [torch.nn.Linear(4, 1), FROZEN])
def test_modules_in_train_mode_and_frozen_ones_evaluate_nothing(module: torch.nn.Module) -> None:
    rows = evaluated()
    rows.add_evaluation(module, (torch.zeros(1, 4),), None)
    assert rows.calls == 0
    before = EvaluatedRows()  # an evaluation before the training waits for it
    before.add_evaluation(MODEL, (torch.zeros(1, 4),), None)
    assert before.facts() is None


def test_only_the_first_passes_are_looked_at() -> None:
    assert evaluated([1] * (CALLS + 5)).calls == CALLS


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ([(4,), (4,)], 1.0),  # an observation without a batch
        ([(1, 4), (1, 4)], 1.0),
        ([(8, 4), (8, 4)], 8.0),
        ([(1, 4), (1, 4), (1, 4), (64, 4)], None),  # targets beside actions
        ([], None),
    ],
)
def test_rows_of_a_model_that_acts_are_known_if_all_are_alike(
    shapes: list[tuple[int, ...]], rows: float | None
) -> None:
    acting = evaluated([1, 1])
    for shape in shapes:
        acting.add_evaluation(torch.nn.Linear(4, 1), (torch.zeros(shape),), None)
    assert acting.acting() == (None if rows is None else (rows, 64.0))


def test_shapes_of_a_long_training_are_spread_over_it():
    rows = EvaluatedRows()
    for update in range(1000):
        rows.add_training((4, update), update)
    updates = [update for update, _ in rows.shapes]
    assert updates == list(range(0, 1000, 16))
    assert rows.shapes[-1] == (992, (4, 992))
