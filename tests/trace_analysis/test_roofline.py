"""Rates of simulated trainings whose work and time are known."""

import json

import pytest

from training_profiler.trace_analysis.work_formulas import Inputs, call_work

BF16 = "c10::BFloat16"


def work(name, shapes, types=(), values=()):
    found = call_work(name, Inputs(*(json.dumps(list(part)) for part in (shapes, types, values))))
    return None if found is None else (found.flops, found.bytes)


X, W = [8, 64, 56, 56], [128, 64, 3, 3]
FORWARD = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]  # 28 x 28 positions
Y = [8, 128, 28, 28]
FLOPS = 2 * 8 * 28 * 28 * 128 * 64 * 9
BACKWARD = ["", "", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
Q = [2, 1024, 16, 64]
PAIRS = 2 * 16 * 1024 * 1024 * 64


@pytest.mark.parametrize(
    ("name", "shapes", "values", "flops"),
    [
        ("mm", [[3, 5], [5, 7]], (), 2 * 3 * 5 * 7),
        ("mv", [[3, 5], [5]], (), 2 * 3 * 5),
        ("addmm", [[7], [3, 5], [5, 7]], (), 2 * 3 * 5 * 7),
        ("bmm", [[4, 3, 5], [4, 5, 7]], (), 4 * 2 * 3 * 5 * 7),
        ("linear", [[2, 3, 5], [7, 5], [7]], (), 2 * 6 * 5 * 7),
        ("_scaled_mm", [[3, 5], [5, 7]], (), 2 * 3 * 5 * 7),
        ("convolution", [X, W], FORWARD, FLOPS),
        ("convolution", [X, W], [text.replace("[", "(").replace("]", ")") for text in FORWARD], FLOPS),
        ("cudnn_convolution", [X, W], ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"], FLOPS),
        ("miopen_convolution", [X, W], ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"], FLOPS),
        ("convolution", [[8, 64, 56, 56], [64, 1, 3, 3]], [*FORWARD[:8], "64"], 2 * 8 * 28 * 28 * 64 * 9),
        ("convolution_backward", [Y, X, W], [*BACKWARD, "[True, True, False]"], 2 * FLOPS),
        ("convolution_backward", [Y, X, W], [*BACKWARD, "[False, True, False]"], FLOPS),
        ("cudnn_convolution_backward_input", [[], Y, W], (), FLOPS),
        ("_flash_attention_forward", [Q, Q, Q], [*[""] * 8, "False"], 4 * PAIRS),
        ("_flash_attention_forward", [Q, Q, Q], [*[""] * 8, "True"], 2 * PAIRS),
        ("_flash_attention_backward", [Q, Q, Q, Q], [*[""] * 11, "True"], 5 * PAIRS),
        ("_efficient_attention_forward", [Q, Q, Q], [*[""] * 9, "0"], 4 * PAIRS),
        # Without the values of arguments:
        ("convolution", [X, W], (), None),
        ("convolution_backward", [Y, X, W], (), None),
        ("_flash_attention_forward", [Q, Q, Q], (), None),
        # Shapes that do not go together, packed sequences, a transposed convolution, a mask that is not square:
        ("mm", [[3, 5], [6, 7]], (), None),
        ("mm", [], (), None),
        ("_flash_attention_forward", [[2048, 16, 64]] * 3, [*[""] * 8, "True"], None),
        ("convolution", [X, W], [*FORWARD[:6], "True", "[0, 0]", "1"], None),
        ("_flash_attention_forward", [Q, [2, 99, 16, 64], [2, 99, 16, 64]], [*[""] * 8, "True"], None),
    ],
)
def test_flops_follow_from_shapes(name, shapes, values, flops):
    assert work(f"aten::{name}", shapes, values=values)[0] == flops


@pytest.mark.parametrize(
    ("name", "shapes", "types", "moved"),
    [
        ("mm", [[3, 5], [5, 7]], [BF16, BF16], 2 * (15 + 35 + 21)),
        ("addmm", [[7], [3, 5], [5, 7]], ["float"] * 3, 4 * (7 + 15 + 35 + 21)),
        ("add", [[4, 8], [8], []], ["float", "float", "Scalar"], 4 * (32 + 8 + 32)),
        ("add_", [[4, 8], [4, 8], []], ["longint", "longint", "Scalar"], 8 * 3 * 32),
        ("relu", [[4, 8]], [BF16], 2 * 64),
        ("fill_", [[4, 8], []], ["float", "Scalar"], 4 * 32),
        ("copy_", [[4, 8], [4, 8], []], [BF16, "float", "Scalar"], 32 * 2 + 32 * 4),
        ("sum", [[4, 8]], ["double"], 8 * 32),
        ("_softmax", [[4, 8]], ["float"], 4 * 64),
        ("add", [[4, 8], [4, 8]], ["float", BF16], None),
        ("add", [[4, 8], [4, 8]], [], None),
        ("mul", [[4, 8], [4, 8]], ["c10::complex<float>"] * 2, None),
        ("_scaled_mm", [[3, 5], [5, 7]], ["c10::Float8_e4m3fn"] * 2, None),
    ],
)
def test_least_bytes_follow_from_shapes_and_types(name, shapes, types, moved):
    assert work(f"aten::{name}", shapes, types)[1] == moved
