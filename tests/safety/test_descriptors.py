import os
import resource

import pytest

from training_profiler.safety import descriptors
from training_profiler.safety.descriptors import raised


def test_descriptor_gets_a_high_number_and_its_own_is_free(tmp_path):
    low = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    high = raised(low)
    try:
        assert high >= descriptors.LOWEST
        assert not os.get_inheritable(high)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(low)
        assert os.write(high, b"x") == 1
    finally:
        os.close(high)


def test_below_a_lower_limit_it_is_above_the_standard_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptors, "LOWEST", resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 10)
    high = raised(os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT))
    try:
        assert 3 <= high < descriptors.LOWEST
    finally:
        os.close(high)
