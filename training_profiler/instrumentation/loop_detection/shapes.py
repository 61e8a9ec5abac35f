"""The shapes of what a module gets, whatever a program passes to it."""

from typing import Any, Final

MOST_INSIDE: Final = 8  # tensors of one list or dictionary
IMAGE: Final = 4  # dimensions of a batch of images


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor; () for anything else, and where it is not known in numbers.

    A nested tensor raises where it has no shape, and a compiler that traces has symbols.
    """
    try:
        shape = value.shape
    except Exception:
        return ()
    if not isinstance(shape, tuple):
        return ()
    for length in shape:
        if type(length) is not int:
            return ()
    return shape


def elements_of(shape: tuple[int, ...]) -> int:
    """Return how many numbers a tensor of this shape has; 0 for (), which may be no tensor at all."""
    elements = 1 if shape else 0
    for length in shape:
        elements *= length
    return elements


def largest_shape(values: Any) -> tuple[int, ...]:
    """Return the shape of the largest tensor, also of those in a list or a dictionary; () without any."""
    largest: tuple[int, ...] = ()
    for value in values:
        if isinstance(value, (list, tuple)):
            shape = largest_shape(value[:MOST_INSIDE])
        elif isinstance(value, dict):
            shape = largest_shape(list(value.values())[:MOST_INSIDE])
        else:
            shape = shape_of(value)
        if elements_of(shape) > elements_of(largest):
            largest = shape
    return largest


def has_channels_last(values: Any) -> bool:
    """Return whether an image among ``values`` has its channels last in memory: strides of NHWC, but not of NCHW."""
    for value in values:
        if isinstance(value, (list, tuple)):
            if has_channels_last(value[:MOST_INSIDE]):
                return True
        elif isinstance(value, dict):
            if has_channels_last(list(value.values())[:MOST_INSIDE]):
                return True
        elif len(shape_of(value)) == IMAGE and _is_channels_last(value):
            return True
    return False


def _is_channels_last(image: Any) -> bool:
    try:
        _, channels, _, width = image.shape
        strides = image.stride()
    except Exception:  # a tensor without strides, such as a sparse one
        return False
    return channels > 1 and width > 1 and bool(strides[1] == 1 and strides[3] == channels)
