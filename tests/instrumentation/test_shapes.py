"""Shapes of what a module gets: nothing that a program passes raises."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_profiler.instrumentation.loop_detection.input_sizes import InputSizes
from training_profiler.instrumentation.loop_detection.shapes import largest_shape, shape_of


class Lazy:
    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("not read yet")


NESTED = torch.nested.nested_tensor([torch.zeros(2, 4), torch.zeros(3, 4)])


@pytest.mark.parametrize(
    "value", [NESTED, Lazy(), SimpleNamespace(shape=[2, 3]), SimpleNamespace(shape=("batch", 3)), 3, None, "text"]
)
def test_what_has_no_shape_in_numbers_has_none(value: Any) -> None:
    assert shape_of(value) == ()


def test_the_largest_is_found_beside_what_has_none() -> None:
    inputs = (NESTED, {"ids": torch.zeros(2, 8)}, [torch.zeros(3)], Lazy())
    assert largest_shape(inputs) == (2, 8)
    assert largest_shape(()) == ()


def test_sizes_of_nested_tensors_are_unknown() -> None:
    sizes = InputSizes()
    sizes.add((NESTED,))
    sizes.add((torch.zeros(2, 8),))
    assert sizes.pop() == [(1, 16)]
