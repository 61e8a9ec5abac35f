"""The arithmetic and the memory traffic of one call of an operator, from the shapes of its inputs.

FLOPs count a multiplication and an addition as two. Bytes are the least that any kernel must move: each input is read
once and each output written once. Sources of the formulas:

- matrix products: 2 m n k (LAPACK Working Note 41, appendix C: GEMM)
- convolutions: a product of N * output positions, output channels and (input channels / groups) * kernel positions,
  so 2 * N * output positions * elements of the weight (Chetlur et al. 2014, "cuDNN: Efficient Primitives for Deep
  Learning", section 3). The gradient of the input and that of the weight cost as much each.
- attention: two products forward, 4 * batch * heads * queries * keys * size of a head, half of it under a causal mask;
  backward five products in place of two (Dao 2023, "FlashAttention-2", section 4.1)
- element-wise operators and reductions: memory traffic only
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from training_profiler.trace_analysis.event_table import element_bytes

MATMUL: Final = "matrix product"
CONVOLUTION: Final = "convolution"
ATTENTION: Final = "attention"
ELEMENTWISE: Final = "element-wise"
REDUCTION: Final = "reduction"

Shape = tuple[int, ...]
Work = tuple[int | None, float | None]  # FLOPs and elements moved

# The types of inputs as Kineto writes them, spaces aside, and their names in torch.
_DTYPES: Final = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "longint": "int64",
    "long": "int64",
    "int": "int32",
    "bool": "bool",
    "unsignedchar": "uint8",
    "signedchar": "int8",
}


_LISTS: Final = str.maketrans("()", "[]")


class UnknownError(Exception):
    """The trace lacks what the formula needs."""


@dataclass(frozen=True, slots=True)
class CallWork:
    """The work of one call; None and "" if unknown."""

    kind: str
    dtype: str
    flops: int | None
    bytes: int | None
    lacks: str  # what the formula needs and the trace does not have


class Inputs:
    """The recorded inputs of a call, as JSON texts: shapes, types, and the values of arguments that are not tensors."""

    def __init__(self, shapes: str, types: str, values: str) -> None:
        self._shapes, self._types, self._values = map(_list, (shapes, types, values))

    def shape(self, i: int, least: int = 1) -> Shape:
        """Return the shape of a tensor with ``least`` dimensions or more.

        Raises:
            UnknownError: there is none.
        """
        sizes = self._shapes[i] if i < len(self._shapes) else None
        if not isinstance(sizes, list) or not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise UnknownError("input shapes")
        if len(sizes) < least:
            raise UnknownError("input shapes")
        return tuple(sizes)

    def dtype(self, i: int) -> str:
        """Return the type of a tensor as torch names it; "" if unknown."""
        return _DTYPES.get(self._types[i], "") if i < len(self._types) and isinstance(self._types[i], str) else ""

    def value(self, i: int) -> Any:
        """Return the value of an argument that is a number, a bool or a list of them.

        Raises:
            UnknownError: it was not recorded.
        """
        text = self._values[i] if i < len(self._values) else ""
        try:
            return json.loads(str(text).translate(_LISTS).replace("True", "true").replace("False", "false"))
        except ValueError:
            raise UnknownError("values of arguments") from None


def _list(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def call_work(name: str, inputs: Inputs) -> CallWork | None:
    """Return the work of one call of an operator of torch; None if no formula is known for it."""
    formula = FORMULAS.get(name)
    if formula is None:
        return None
    dtype = inputs.dtype(formula.typed_by)
    size = element_bytes(dtype)
    try:
        flops, elements = formula.count(inputs)
    except UnknownError as error:
        return CallWork(formula.kind, dtype, None, None, str(error))
    moved = None if elements is None or size is None else round(elements * size)
    lacks = "" if moved is not None else "size or type of the result" if size else "input types"
    return CallWork(formula.kind, dtype, flops, moved, lacks)


@dataclass(frozen=True, slots=True)
class Formula:
    """How the work of an operator is counted."""

    kind: str
    count: Callable[[Inputs], Work]
    typed_by: int = 0  # the argument whose type is that of the work


def _product(a: int, b: int, added: int | None = None) -> Callable[[Inputs], Work]:
    """Count a product of the last two dimensions of two arguments, or of a matrix and a vector."""

    def count(inputs: Inputs) -> Work:
        left, right = inputs.shape(a, 2), inputs.shape(b)
        columns = right[-1] if len(right) > 1 else 1
        batch, rows, inner = math.prod(left[:-2]), left[-2], left[-1]
        if right[max(0, len(right) - 2)] != inner:
            raise UnknownError("input shapes")
        bias = 0 if added is None else math.prod(inputs.shape(added, 0))
        return 2 * batch * rows * inner * columns, math.prod(left) + math.prod(right) + batch * rows * columns + bias

    return count


def _linear(inputs: Inputs) -> Work:
    x, weight = inputs.shape(0), inputs.shape(1, 2)
    rows = math.prod(x[:-1])
    return 2 * rows * math.prod(weight), math.prod(x) + math.prod(weight) + rows * weight[0]


def _convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> Callable[[Inputs], Work]:
    """Count a convolution; the arguments are the places of its parameters."""

    def count(inputs: Inputs) -> Work:
        x, weight = inputs.shape(0, 3), inputs.shape(1, 3)
        if transposed is not None and inputs.value(transposed):
            raise UnknownError("a formula for transposed convolutions")
        spatial = len(x) - 2
        steps, pads, gaps = (_each(inputs.value(i), spatial) for i in (stride, padding, dilation))
        positions = math.prod(
            (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
            for size, kernel, step, pad, gap in zip(x[2:], weight[2:], steps, pads, gaps, strict=True)
        )
        flops = 2 * x[0] * positions * math.prod(weight)
        return flops, math.prod(x) + math.prod(weight) + x[0] * weight[0] * positions

    return count


def _each(value: Any, spatial: int) -> list[int]:
    """Return one number for each spatial dimension: torch takes a list of one for all of them."""
    numbers = value if isinstance(value, list) else [value]
    numbers = numbers * spatial if len(numbers) == 1 else numbers
    if len(numbers) != spatial or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise UnknownError("values of arguments")
    return numbers


def _convolution_backward(inputs: Inputs) -> Work:
    gradient, x, weight = inputs.shape(0, 3), inputs.shape(1, 3), inputs.shape(2, 3)
    over = x if inputs.value(7) else gradient  # a transposed convolution visits the positions of its input
    wanted = inputs.value(10)
    if not isinstance(wanted, list) or len(wanted) < 2:
        raise UnknownError("values of arguments")
    products = int(wanted[0] is True) + int(wanted[1] is True)
    moved = math.prod(gradient) + products * (math.prod(x) + math.prod(weight))
    return products * 2 * over[0] * math.prod(over[2:]) * math.prod(weight), moved


def _gradient_of_input(inputs: Inputs) -> Work:
    """Count cudnn_convolution_backward_input(size, gradient, weight, ...) of torch before 1.11."""
    gradient, weight = inputs.shape(1, 3), inputs.shape(2, 3)
    return 2 * gradient[0] * math.prod(gradient[2:]) * math.prod(weight), None


def _attention(query: int, causal: int, products: int = 2, is_heads_first: bool = False) -> Callable[[Inputs], Work]:
    """Count attention; ``products`` are the matrix products of each head."""

    def count(inputs: Inputs) -> Work:
        q, k, v = (inputs.shape(query + i) for i in range(3))
        if not len(q) == len(k) == len(v) == 4:
            raise UnknownError("lengths of packed sequences")
        if q[3] != v[3]:
            raise UnknownError("a formula for values of another size")
        at, heads_at = (2, 1) if is_heads_first else (1, 2)
        flops = 2 * products * q[0] * q[heads_at] * q[at] * k[at] * q[3]
        if inputs.value(causal):
            if q[at] != k[at]:
                raise UnknownError("a formula for causal masks that are not square")
            flops //= 2
        read = math.prod(q) + math.prod(k) + math.prod(v)
        # Forward writes an output as large as the queries; backward also reads it with its gradient, and writes three.
        return flops, read + math.prod(q) if products == 2 else 2 * read + 2 * math.prod(q)

    return count


def _elementwise(read: int) -> Callable[[Inputs], Work]:
    """Count the elements of the first ``read`` inputs, and of the output that they broadcast to."""

    def count(inputs: Inputs) -> Work:
        shapes = [inputs.shape(i, 0) for i in range(max(1, read))]  # what is only written has the shape of the first
        types = {inputs.dtype(i) for i, shape in enumerate(shapes) if shape}
        if len(types) > 1:
            raise UnknownError("a formula for mixed types")
        rank = max(map(len, shapes))
        aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
        written = (next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True))
        return None, sum(map(math.prod, shapes[:read])) + math.prod(written)

    return count


def _copy(inputs: Inputs) -> Work:
    """Count copy_(to, from), which may convert; in elements of the type that is written."""
    to, of = (element_bytes(inputs.dtype(i)) for i in range(2))
    if to is None or of is None:
        raise UnknownError("input types")
    return None, math.prod(inputs.shape(0, 0)) + math.prod(inputs.shape(1, 0)) * of / to


def _formulas() -> dict[str, Formula]:
    unary = ["abs", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "sigmoid", "tanh"]
    unary += ["relu", "gelu", "silu", "clamp", "clamp_min", "clamp_max"]
    binary = ["add", "sub", "mul", "div"]
    ternary = ["addcmul", "addcdiv"]
    gradients = [f"{name}_backward" for name in ["threshold", "sigmoid", "tanh", "gelu", "silu"]]
    reductions = ["sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "var", "std", "linalg_vector_norm", "norm"]
    rows = {
        "mm": Formula(MATMUL, _product(0, 1)),
        "mv": Formula(MATMUL, _product(0, 1)),
        "bmm": Formula(MATMUL, _product(0, 1)),
        "addmm": Formula(MATMUL, _product(1, 2, added=0), typed_by=1),
        "addmv": Formula(MATMUL, _product(1, 2, added=0), typed_by=1),
        "baddbmm": Formula(MATMUL, _product(1, 2, added=0), typed_by=1),
        "linear": Formula(MATMUL, _linear),
        # Of 8-bit matrices; the type of the result is not among the inputs.
        "_scaled_mm": Formula(MATMUL, lambda inputs: (_product(0, 1)(inputs)[0], None)),
        "convolution": Formula(CONVOLUTION, _convolution(3, 4, 5, transposed=6)),
        "cudnn_convolution": Formula(CONVOLUTION, _convolution(3, 2, 4)),
        "cudnn_convolution_relu": Formula(CONVOLUTION, _convolution(3, 4, 5)),
        "miopen_convolution": Formula(CONVOLUTION, _convolution(4, 3, 5)),
        "convolution_backward": Formula(CONVOLUTION, _convolution_backward),
        "cudnn_convolution_backward_input": Formula(CONVOLUTION, _gradient_of_input, typed_by=1),
        "_flash_attention_forward": Formula(ATTENTION, _attention(0, causal=8)),
        "_flash_attention_backward": Formula(ATTENTION, _attention(1, causal=11, products=5)),
        "_efficient_attention_forward": Formula(ATTENTION, _attention(0, causal=9)),
        "_efficient_attention_backward": Formula(ATTENTION, _attention(1, causal=14, products=5)),
        "_scaled_dot_product_cudnn_attention": Formula(ATTENTION, _attention(0, causal=6, is_heads_first=True)),
        "copy_": Formula(ELEMENTWISE, _copy),
        "fill_": Formula(ELEMENTWISE, _elementwise(0)),
        "zero_": Formula(ELEMENTWISE, _elementwise(0)),
        "_softmax": Formula(REDUCTION, _elementwise(1)),
        "_log_softmax": Formula(REDUCTION, _elementwise(1)),
    }
    for names, read in ((unary, 1), (binary, 2), (ternary, 3), (gradients, 2)):
        in_place = [] if names is gradients else [f"{name}_" for name in names]
        rows |= dict.fromkeys([*names, *in_place], Formula(ELEMENTWISE, _elementwise(read)))
    # The output of a reduction is smaller than its input, and left out.
    read_once = Formula(REDUCTION, lambda inputs: (None, math.prod(inputs.shape(0, 0))))
    rows |= dict.fromkeys(reductions, read_once)
    return {f"aten::{name}": row for name, row in rows.items()}


FORMULAS: Final[Mapping[str, Formula]] = _formulas()
