import os
import resource

import pytest

from training_profiler.safety import descriptors
from training_profiler.safety.descriptors import Descriptor, identity, raised


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


def test_number_that_the_program_got_is_left_open(tmp_path):
    ours = os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT)
    kept = Descriptor(ours, identity(ours))
    assert kept.is_ours()
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    os.dup2(theirs, ours)
    assert not kept.is_ours()
    kept.close()
    os.fstat(ours)
    os.close(ours)
    os.close(theirs)
    kept.close()


def test_descriptor_of_ours_is_closed(tmp_path):
    ours = os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT)
    Descriptor(ours, identity(ours)).close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(ours)
