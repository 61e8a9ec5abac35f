"""Shapes of what a module gets: nothing that a program passes raises."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from training_profiler.base.units import NS_PER_MS
from training_profiler.instrumentation.loop_detection.input_sizes import (
    InputSizes,
    has_channels_last,
    largest_shape,
    shape_of,
)


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


def looked_at(steps, step_ms):
    """Return the updates before which sizes are looked at, of an optimizer that is asked when they want to be."""
    sizes, found, asked = InputSizes(), [], 0
    for update in range(1, steps + 1):
        if sizes.is_due:
            found.append(update)
        if update >= sizes.next_update:
            asked += 1
            sizes.update_ends(update, round(update * step_ms * NS_PER_MS))
            assert sizes.next_update > update
        elif not update & (update - 1):
            raise AssertionError(f"not asked at {update}")
    return found, asked


@pytest.mark.parametrize(("step_ms", "every"), [(50.0, 16), (3.2, 16), (3.1, 32), (0.25, 256), (0.001, 1024)])
def test_sizes_are_looked_at_every_so_many_steps_that_these_are_some_time_apart(step_ms, every):
    found, asked = looked_at(10_000, step_ms)
    assert found[:65] == list(range(1, 66))
    assert found[65] == 81
    assert set(np.diff(found[70:])) == {every}
    assert asked < 2 * len(found) + 16


def test_images_with_their_channels_last_are_found_in_lists_and_dictionaries():
    first = torch.zeros(2, 3, 8, 8)
    last = first.to(memory_format=torch.channels_last)
    assert has_channels_last((last,))
    assert has_channels_last(([torch.zeros(2), {"image": last}],))
    assert not has_channels_last((first, torch.zeros(4), None, "text"))
    assert not has_channels_last((torch.zeros(2, 1, 8, 8).to(memory_format=torch.channels_last),))
    assert not has_channels_last((torch.zeros(2, 3, 8, 8).to_sparse(),))
