from tests.support.golden import assert_answers
from training_profiler.base.peaks import PEAKS, peak_memory_of, peak_of


def peak(line: str) -> object:
    device, _, dtype = line.rpartition(": ")
    found = peak_of(device, dtype)
    return found and found[0]


def test_the_dense_peak_depends_on_device_and_dtype_and_each_has_a_source() -> None:
    assert_answers("peaks", peak)
    assert peak_of("", "float16") is None
    assert all(peak.source for peak in PEAKS)


def test_the_bandwidth_is_that_of_the_variant() -> None:
    assert_answers("bandwidths", peak_memory_of)
