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


@pytest.mark.parametrize(
    ("matmul", "computed_in"),
    [
        ({"allow_tf32": False}, "float32"),
        ({"allow_tf32": True}, "tf32"),
        ({"allow_tf32": False, "fp32_precision": "none"}, "float32"),
        ({"fp32_precision": "tf32"}, "tf32"),  # reading the other setting would raise
        ({"fp32_precision": "ieee"}, "float32"),
        ({"fp32_precision": "none"}, "float32 or tf32"),
    ],
)
def test_precision_of_float32_matrix_products(matmul, computed_in):
    assert _float32_on_cuda(backends(matmul, {}), is_convolution=False) == computed_in


@pytest.mark.parametrize(
    ("cudnn", "computed_in"),
    [
        ({"allow_tf32": True}, "tf32"),
        ({"allow_tf32": True, "conv": conv("none")}, "tf32"),
        ({"conv": conv("tf32")}, "tf32"),
        ({"conv": conv("ieee")}, "float32"),
        ({}, "float32 or tf32"),
    ],
)
def test_precision_of_float32_convolutions(cudnn, computed_in):
    assert _float32_on_cuda(backends({"allow_tf32": False}, cudnn), is_convolution=True) == computed_in


def test_import_of_the_formulas_says_nothing_of_a_missing_triton(monkeypatch, caplog):
    def warns(name):
        logging.getLogger(name).warning("triton not found")

    monkeypatch.setattr(importlib, "import_module", warns)
    operations._flop_counter()
    assert caplog.messages == []
    assert not logging.getLogger("torch.utils.flop_counter").disabled
