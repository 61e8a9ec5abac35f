import pytest

from tests.trace_analysis.kernel_names import KERNELS
from training_profiler.trace_analysis.kernel_names import is_flash, kind_of, uses_tensor_cores


@pytest.mark.parametrize(("name", "kind", "on_tensor_cores", "flash"), KERNELS)
def test_kind_of_kernel_follows_from_its_name(name, kind, on_tensor_cores, flash):
    assert (kind_of(name), uses_tensor_cores(name), is_flash(name)) == (kind, on_tensor_cores, flash)


def test_table_has_at_least_120_kernels():
    assert len({name for name, *_ in KERNELS}) >= 120


def test_name_of_10_kb_is_unclassified():
    assert kind_of("x" * 10_000) == "unclassified"
