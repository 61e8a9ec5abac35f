"""The rule about Python in the backward passes of own autograd functions, and how such lines are known."""

import pytest

from tests.diagnosis.cases import CALL, PLAIN, backward
from training_profiler.diagnosis.places import in_python
from training_profiler.model.program import CompileFacts
from training_profiler.model.snapshot import LineStats


def line(number: int, share: float, samples: int = 50, phase: str = "custom backward", **called: float) -> LineStats:
    """Return a line of a ``backward``; ``called`` has shares by function, with ``_`` for dots."""
    names = {name.replace("_", "."): part for name, part in called.items()}
    return LineStats("ops.py", number, "Gelu.backward", share, samples, phase=phase, called=names)


def spent(*lines: LineStats) -> float:
    return sum(each.share for each in in_python(lines))


TANH = line(22, 0.2, np_tanh=0.02)  # 0.5 * (1 + np.tanh(a ** 3)) * ...


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ((line(22, 0.2, torch_tanh=0.02),), 0.0),
        ((line(22, 0.2, np_tanh=0.02), line(23, 0.1, torch_matmul=0.05)), 0.02),
        ((line(22, 0.2, np_random_permutation=0.02), line(23, 0.1)), 0.02),
        ((line(22, 0.2, samples=20, np_tanh=0.02), line(23, 0.1)), 0.02),
        ((line(22, 0.2, re_sub=0.1),), 0.1),
        ((line(22, 0.1, np_mean=0.1), line(23, 0.2)), 0.1),
        ((line(22, 0.1, np_exp=0.01), line(24, 0.1, torch_norm=0.1)), 0.01),
    ],
    ids=["torch", "both", "random numbers", "few calls seen", "another library", "another line", "a norm"],
)
def test_arithmetic_beside_other_calls_may_be_torchs(lines, seconds):
    assert spent(*lines) == pytest.approx(seconds)


SAYS = {"python-in-backward": {"NumPy": backward(TANH, line(23, 0.1, np_exp=0.01), CALL)}}
SILENT = {
    "python-in-backward": {
        "torch": backward(line(22, 0.3, torch_sign=0.3), CALL),
        "at the threshold": backward(line(22, 0.1, np_tanh=0.1), CALL),
        "few samples": backward(line(22, 0.3, samples=19, np_tanh=0.3), CALL),
        "a hook": backward(line(22, 0.3, phase="backward hook", np_tanh=0.3), CALL),
        "recomputed": backward(line(22, 0.3, phase="recomputation", np_tanh=0.3), CALL),
        "a GPU": backward(TANH, line(23, 0.1, np_exp=0.01), CALL, optimizer=PLAIN._replace(devices=("cuda",))),
        "compiled": backward(TANH, line(23, 0.1, np_exp=0.01), CALL, compiled=CompileFacts(1, 2.0)),
    }
}
