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


def test_passes_with_many_rows_are_no_facts() -> None:
    assert evaluated([64], [64]).facts() is None


def test_an_evaluation_before_the_training_waits_for_it() -> None:
    rows = EvaluatedRows()
    rows.add_evaluation(MODEL, (torch.zeros(1, 4),), None)
    assert rows.facts() is None


@pytest.mark.parametrize("module", [torch.nn.Linear(4, 1), torch.nn.Linear(4, 1).eval().requires_grad_(False)])
def test_modules_in_train_mode_and_frozen_ones_evaluate_nothing(module: torch.nn.Module) -> None:
    rows = evaluated()
    rows.add_evaluation(module, (torch.zeros(1, 4),), None)
    assert rows.calls == 0


@pytest.mark.parametrize(
    "inputs",
    [
        ({"ids": torch.zeros(2, 8), "mask": torch.zeros(2)},),
        ([torch.zeros(2, 8)], 3, None),
        (torch.zeros(2, 8), "name", torch.tensor(0.0)),
    ],
)
def test_the_largest_tensor_counts_wherever_it_is(inputs: tuple[Any, ...]) -> None:
    rows = evaluated()
    rows.add_evaluation(MODEL, inputs, None)
    facts = rows.facts()
    assert facts is not None
    assert (facts.rows, facts.elements) == (2, 8)


def test_inputs_without_a_tensor_have_no_rows() -> None:
    rows = evaluated([1])
    rows.add_evaluation(MODEL, ("text", {}, []), None)
    facts = rows.facts()
    assert facts is not None
    assert (facts.calls, facts.few) == (2, 1)


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
