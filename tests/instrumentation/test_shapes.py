"""Shapes of what a module gets: nothing that a program passes raises."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_profiler.instrumentation.loop_detection.input_sizes import InputSizes
from training_profiler.instrumentation.loop_detection.shapes import has_channels_last, largest_shape, shape_of


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
    sizes.add((NESTED,), 1)
    sizes.add((torch.zeros(2, 8),), 1)
    assert sizes.pop() == [(1, 16)]


def test_images_with_their_channels_last_are_found_in_lists_and_dictionaries():
    first = torch.zeros(2, 3, 8, 8)
    last = first.to(memory_format=torch.channels_last)
    assert has_channels_last((last,))
    assert has_channels_last(([torch.zeros(2), {"image": last}],))
    assert not has_channels_last((first, torch.zeros(4), None, "text"))
    assert not has_channels_last((torch.zeros(2, 1, 8, 8).to(memory_format=torch.channels_last),))
    assert not has_channels_last((torch.zeros(2, 3, 8, 8).to_sparse(),))
