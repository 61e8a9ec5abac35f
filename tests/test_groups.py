"""Tests that share a training run in one process; otherwise each process runs that training again."""

import pytest


@pytest.mark.xdist_group("of this test")
def test_tests_of_a_group_share_a_process(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("the tests run in one process")
    assert request.node.nodeid.endswith("@of this test"), "pytest-xdist hands out this group's tests one by one"
