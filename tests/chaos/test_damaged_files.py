"""Damaged files of each kind are read or refused in one line; ``make fuzz`` reads many more."""

import pytest

from tests.support.fuzz import KINDS, fuzz

pytestmark = pytest.mark.chaos
CASES = {"journal": 300, "rank": 200, "meta": 100}  # of the others, which are read faster, 300 to 400


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_do_no_harm(kind: str) -> None:
    assert fuzz(kind, seed=1, cases=CASES.get(kind, 300)) == []
