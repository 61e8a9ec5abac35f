from pathlib import Path

import pytest

from tests.support.golden import assert_answers
from training_profiler.trace_analysis.known_names import (
    COPIES,
    LAYOUT,
    TO_NCHW,
    is_flash,
    kind_of,
    lacks_tensor_cores,
    uses_tensor_cores,
)

ROWS = Path(__file__).with_name("kernel_names.tsv").read_text(encoding="utf-8").splitlines()[1:]
KERNELS = [row.split("\t") for row in ROWS]


@pytest.mark.parametrize(("kind", "on_tensor_cores", "flash", "name"), KERNELS)
def test_kind_of_kernel_follows_from_its_name(kind, on_tensor_cores, flash, name):
    assert kind_of(name) == kind
    assert (uses_tensor_cores(name), is_flash(name)) == (on_tensor_cores == "yes", flash == "yes")


def test_table_has_at_least_120_kernels():
    assert len({name for *_, name in KERNELS}) >= 120


def test_name_of_10_kb_is_unclassified():
    assert kind_of("x" * 10_000) == "unclassified"


def said_of(name):
    """Return what a name shows."""
    found = {
        "lacks tensor cores": lacks_tensor_cores(name),
        "a copy": COPIES.search(name),
        "converts the layout": LAYOUT.search(name),
        "to NCHW": TO_NCHW.search(name),
    }
    return ", ".join(what for what, is_so in found.items() if is_so)


def test_names_show_missing_tensor_cores_copies_and_conversions_of_layout():
    assert_answers("kernels", said_of)
