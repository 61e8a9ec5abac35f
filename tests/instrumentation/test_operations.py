import importlib
import logging
from types import SimpleNamespace

import pytest

from training_profiler.inspections import flop_operations as operations
from training_profiler.inspections.flop_operations import _float32_on_cuda


def backends(matmul, cudnn):
    return SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(**matmul)), cudnn=SimpleNamespace(**cudnn))


def conv(precision):
    return SimpleNamespace(fp32_precision=precision)


OFF = {"allow_tf32": False}


@pytest.mark.parametrize(
    ("matmul", "cudnn", "computed_in"),
    [
        (OFF, None, "float32"),
        ({"allow_tf32": True}, None, "tf32"),
        ({"allow_tf32": False, "fp32_precision": "none"}, None, "float32"),
        ({"fp32_precision": "tf32"}, None, "tf32"),  # reading the other setting would raise
        ({"fp32_precision": "ieee"}, None, "float32"),
        ({"fp32_precision": "none"}, None, "float32 or tf32"),
        (OFF, {"allow_tf32": True}, "tf32"),
        (OFF, {"allow_tf32": True, "conv": conv("none")}, "tf32"),
        (OFF, {"conv": conv("tf32")}, "tf32"),
        (OFF, {"conv": conv("ieee")}, "float32"),
        (OFF, {}, "float32 or tf32"),
    ],
)
def test_precision_of_float32_matrix_products_and_of_convolutions(matmul, cudnn, computed_in):
    assert _float32_on_cuda(backends(matmul, cudnn or {}), is_convolution=cudnn is not None) == computed_in


def test_import_of_the_formulas_says_nothing_of_a_missing_triton(monkeypatch, caplog):
    def warns(name):
        logging.getLogger(name).warning("triton not found")

    monkeypatch.setattr(importlib, "import_module", warns)
    operations._flop_counter()
    assert caplog.messages == []
    assert not logging.getLogger("torch.utils.flop_counter").disabled
