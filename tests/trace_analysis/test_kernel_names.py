import pytest

from tests.trace_analysis.kernel_names import KERNELS
from training_profiler.trace_analysis.kernel_names import FLASH, TENSOR_CORE, kind_of


@pytest.mark.parametrize(("name", "kind", "on_tensor_cores", "is_flash"), KERNELS)
def test_a_kernel_is_known_by_its_name(name, kind, on_tensor_cores, is_flash):
    assert (kind_of(name), bool(TENSOR_CORE.search(name)), bool(FLASH.search(name))) == (
        kind,
        on_tensor_cores,
        is_flash,
    )


def test_the_table_of_names_is_of_many_different_kernels():
    assert len({name for name, *_ in KERNELS}) >= 120


def test_a_name_of_10_kb_is_no_burden():
    assert kind_of("x" * 10_000) == "unclassified"
