import pytest

from tests.trace_analysis.kernel_names import KERNELS
from training_profiler.trace_analysis.kernel_names import FLASH, TENSOR_CORE, kind_of


@pytest.mark.parametrize(("name", "kind", "on_tensor_cores", "is_flash"), KERNELS)
def test_kind_of_kernel_follows_from_its_name(name, kind, on_tensor_cores, is_flash):
    assert (kind_of(name), bool(TENSOR_CORE.search(name)), bool(FLASH.search(name))) == (
        kind,
        on_tensor_cores,
        is_flash,
    )


def test_table_has_at_least_120_kernels():
    assert len({name for name, *_ in KERNELS}) >= 120


def test_name_of_10_kb_is_unclassified():
    assert kind_of("x" * 10_000) == "unclassified"
