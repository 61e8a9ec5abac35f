import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_profiler.instrumentation.loop_detection.step_detector import (
    MISSED_BY_NEW,
    MISSED_IN_FIRST_STEP,
    MISSED_RATIO,
    MISSED_SLACK,
    StepDetector,
)


class Optimizer:
    pass


class SlottedOptimizer:
    """It allows no weak references."""

    __slots__ = ()


class Updates:
    """Updates at 1, 2, 3, ... ns, and the resulting ends of steps."""

    def __init__(self, kind=Optimizer):
        self.ends = []
        self.detector = StepDetector(self.ends.append)
        self.optimizers = {}
        self.kind = kind
        self.now_ns = 0

    def of(self, pattern):
        """Update one optimizer for each letter of ``pattern``."""
        for letter in pattern:
            self.now_ns += 1
            self.detector.updated(self.optimizers.setdefault(letter, self.kind()), self.now_ns)

    def drop(self, letter, then="spare"):
        self.optimizers.setdefault(then, self.kind())  # created first, so that it gets another id
        del self.optimizers[letter]


def ends_of(pattern, kind=Optimizer):
    updates = Updates(kind)
    updates.of(pattern)
    updates.detector.close()
    return updates.ends


@pytest.mark.parametrize("kind", [Optimizer, SlottedOptimizer])
def test_each_update_of_a_single_optimizer_is_a_step(kind):
    assert ends_of("AAAA", kind) == [1, 2, 3, 4]


def test_single_update_is_one_step():
    assert ends_of("A") == [1]


def test_without_updates_there_is_no_step():
    assert ends_of("") == []


def test_single_optimizer_steps_end_at_once_from_the_second_update():
    updates = Updates()
    updates.of("A")
    assert updates.ends == []
    updates.of("A")
    assert updates.ends == [1, 2]
    updates.of("A")
    assert updates.ends == [1, 2, 3]


def test_step_of_two_alternating_optimizers_ends_with_the_second():
    assert ends_of("ABABAB") == [2, 4, 6]


def test_step_of_two_optimizers_ends_when_the_next_begins():
    updates = Updates()
    updates.of("AB")
    assert updates.ends == []
    updates.of("A")
    assert updates.ends == [2]


def test_critic_as_primary_ends_a_step_with_each_update():
    # The first generator update comes as a surprise: the critic's fifth step has ended before it.
    assert ends_of("CCCCCG" * 3) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18]


def test_generator_as_primary_has_five_critic_updates_per_step():
    assert ends_of("GCCCCC" * 3) == [6, 12, 18]


def test_first_of_three_optimizers_is_primary():
    # The actor updates every second time, the temperature every fourth.
    assert ends_of("CCACCATCCA") == [1, 2, 4, 7, 8, 10]


def test_optimizer_per_parameter_makes_one_step():
    assert ends_of("ABCDEFGH" * 3) == [8, 16, 24]


def test_late_optimizer_joins_the_steps_of_the_primary():
    assert ends_of("AAAABAB") == [1, 2, 3, 4, 7]  # B at 5 comes after the step of A has ended


def test_short_second_phase_is_part_of_the_step():
    updates = Updates()
    updates.of("AAA" + "B" * (MISSED_BY_NEW - 1) + "A")
    assert updates.ends == [1, 2, 3]  # the step of the last A is pending, because B may follow again
    updates.detector.close()
    assert updates.ends == [1, 2, 3, 3 + MISSED_BY_NEW]


def test_second_phase_at_the_threshold_has_its_own_steps():
    updates = Updates()
    updates.of("AAA" + "B" * (MISSED_BY_NEW - 1))
    assert updates.ends == [1, 2, 3]
    updates.of("B")
    assert updates.ends == list(range(1, 4 + MISSED_BY_NEW))
    updates.of("B")
    assert updates.ends == list(range(1, 5 + MISSED_BY_NEW))


def test_alternating_phases_keep_single_steps():
    assert ends_of(("A" * 20 + "B" * 20) * 2) == list(range(1, 81))


def test_short_last_phase_has_its_own_steps_at_close():
    assert ends_of("AAABBB") == [1, 2, 3, 4, 5, 6]


def test_primary_without_completed_step_waits_longer():
    updates = Updates()
    updates.of("A" + "B" * MISSED_IN_FIRST_STEP)
    assert updates.ends == []
    updates.of("B")
    assert updates.ends == list(range(1, 3 + MISSED_IN_FIRST_STEP))


def test_primary_with_one_update_is_replaced_at_close():
    assert ends_of("ABBB") == [1, 2, 3, 4]
    assert ends_of("AB") == [2]


def test_known_companion_may_update_more_often_than_before():
    usual = 2
    most = MISSED_RATIO * usual + MISSED_SLACK
    updates = Updates()
    updates.of("ABB" * 2 + "A" + "B" * most)
    assert updates.ends == [3, 6]
    updates.of("B")
    # The step of the last A has as many updates of B as before. Each later B is a step.
    assert updates.ends == [3, 6, *range(9, 8 + most + 1)]


def test_maximum_updates_per_step_set_the_threshold():
    assert ends_of("ABBBBBB" + "AB" * 3 + "A" + "B" * 30 + "AB") == [7, 9, 11, 13, 44, 46]


def test_deleted_primary_is_replaced_at_once():
    updates = Updates()
    updates.of("AAA")
    updates.drop("A", then="B")
    updates.of("B")
    assert updates.ends == [1, 2, 3]  # others may follow the new primary
    updates.of("B")
    assert updates.ends == [1, 2, 3, 4, 5]


def test_deleted_primary_keeps_the_length_of_its_step():
    updates = Updates()
    updates.of("ABAB")
    updates.drop("A")
    updates.of("B")  # the step of A has had its B
    updates.detector.close()
    assert updates.ends == [2, 4, 5]


def test_last_step_of_deleted_primary_includes_its_companions():
    updates = Updates()
    updates.of("ABA")
    updates.drop("A")
    updates.of("B")
    updates.detector.close()
    assert updates.ends == [2, 4]


def test_second_pair_of_optimizers_has_its_own_steps():
    assert ends_of("ABAB" + "CDCD") == [2, 4, 6, 8]
    assert ends_of("ABABAB" + "CDCDCD" + "EFEFEF") == [2, 4, 6, 8, 10, 12, 14, 16, 18]


def test_new_optimizer_per_step_makes_single_steps():
    updates = Updates()
    for letter, next_letter in itertools.pairwise("ABCDEF"):
        updates.of(letter)
        updates.drop(letter, next_letter)
    updates.detector.close()
    assert updates.ends == [1, 2, 3, 4, 5]


def test_new_optimizer_with_reused_id_becomes_primary():
    updates = Updates()
    for _ in range(5):
        updates.of("A")
        updates.optimizers.clear()
    updates.detector.close()
    assert updates.ends == [1, 2, 3, 4, 5]


def test_discard_pending_drops_the_pending_step():
    updates = Updates()
    updates.of("AB")
    updates.detector.discard_pending()
    updates.detector.close()
    assert updates.ends == []


def test_discard_pending_keeps_ended_steps():
    updates = Updates()
    updates.of("ABAB")
    updates.detector.discard_pending()
    updates.detector.close()
    assert updates.ends == [2]


def test_close_ends_the_pending_step_once():
    updates = Updates()
    updates.of("ABAB")
    updates.detector.close()
    updates.detector.close()
    assert updates.ends == [2, 4]


def test_pending_step_can_be_ended_early():
    updates = Updates()
    updates.of("ABAB")
    updates.detector.end_pending()
    assert updates.ends == [2, 4]
    updates.of("AB")
    updates.detector.close()
    assert updates.ends == [2, 4, 6]


letters = st.sampled_from("ABCD")


@given(st.lists(st.tuples(letters, st.integers(1, 100), st.sampled_from(("", "", "", "drop", "end_pending")))))
def test_steps_end_in_order_at_distinct_updates(blocks):
    updates = Updates()
    for letter, times, after in blocks:
        updates.of(letter * times)
        if after == "drop":
            updates.drop(letter)
        elif after:
            updates.detector.end_pending()
    updates.detector.close()
    assert updates.ends == sorted(set(updates.ends))
    assert set(updates.ends) <= set(range(1, updates.now_ns + 1))
    assert bool(updates.ends) == bool(blocks)


@given(st.text(st.sampled_from("ABCD"), min_size=1, max_size=MISSED_BY_NEW - 1), st.integers(2, 12))
def test_repeated_pattern_has_one_step_per_primary_update(pattern, times):
    assert len(ends_of(pattern * times)) == times * pattern.count(pattern[0])
