"""Damaged files of each kind are read or refused in one line; ``make fuzz`` reads many more."""

import pytest

from tests.support.fuzz import KINDS, fuzz

pytestmark = pytest.mark.chaos
# Up to six commands read each of these, which takes a tenth of a second of processor time; the others are quick.
CASES = {"journal": 100, "rank": 100, "meta": 100, "trials": 100, "members.gz": 100}
CASES_OF_OTHERS = 300


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_do_no_harm(kind: str) -> None:
    assert fuzz(kind, seed=1, cases=CASES.get(kind, CASES_OF_OTHERS)) == []
