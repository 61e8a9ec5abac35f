"""In which order of dimensions the convolutions of a model lie."""

from itertools import islice
from typing import Any, Final

from training_profiler.instrumentation.loop_detection.modules import modules_within
from training_profiler.snapshot.program import ConvolutionFacts

CONVOLUTIONS: Final = ("Conv2d", "ConvTranspose2d")
MOST_MODULES: Final = 2_000  # among which they are looked for
DIMENSIONS: Final = 4


def convolutions_of(torch: Any, module: Any, inputs_last: bool) -> ConvolutionFacts | None:
    """Return the order of the weights of dense convolutions on images; None without any.

    The order of a weight with one input channel, or with a kernel of one pixel, is not defined: it is left out.
    """
    first = last = 0
    for inner in islice(modules_within(module), MOST_MODULES):
        weight = inner._parameters.get("weight") if type(inner).__name__ in CONVOLUTIONS else None
        if weight is None or weight.dim() != DIMENSIONS or inner.groups != 1 or not weight.requires_grad:
            continue
        is_last = weight.is_contiguous(memory_format=torch.channels_last)
        if is_last != weight.is_contiguous():
            first, last = first + (not is_last), last + is_last
    return ConvolutionFacts(first, last, inputs_last) if first or last else None
