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


class Updates:
    """Updates at 1, 2, 3, ... ns, and the resulting ends of steps."""

    def __init__(self):
        self.ends = []
        self.detector = StepDetector(self.ends.append)
        self.optimizers = {}
        self.now_ns = 0

    def of(self, pattern):
        """Update one optimizer for each letter of ``pattern``."""
        for letter in pattern:
            self.now_ns += 1
            self.detector.updated(self.optimizers.setdefault(letter, Optimizer()), self.now_ns)

    def drop(self, letter, then="spare"):
        self.optimizers.setdefault(then, Optimizer())  # created first, so that it gets another id
        del self.optimizers[letter]


def ends_of(pattern):
    updates = Updates()
    updates.of(pattern)
    updates.detector.close()
    return updates.ends


def run(*events):
    """Return the ends of steps after each of the events: updates such as "AB", a method, or a dropped optimizer."""
    updates, ends = Updates(), []
    for event in (*events, "close"):
        if event.isupper():
            updates.of(event)
        elif event.startswith("drop "):
            updates.drop(*event.split()[1:])
        else:
            getattr(updates.detector, event)()
        ends.append(list(updates.ends))
    return ends


def to(last):
    return list(range(1, last + 1))


# Updates that follow each other, one optimizer a letter, and the updates that end a step.
PATTERNS = {
    "": [],
    "A": [1],
    "AAAA": [1, 2, 3, 4],
    "ABABAB": [2, 4, 6],
    # A critic comes first. The first update of the generator is a surprise: the fifth step has ended before it.
    "CCCCCG" * 3: [1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18],
    "GCCCCC" * 3: [6, 12, 18],
    "CCACCATCCA": [1, 2, 4, 7, 8, 10],  # an actor each second time, the temperature each fourth
    "ABCDEFGH" * 3: [8, 16, 24],  # an optimizer a parameter
    "AAAABAB": [1, 2, 3, 4, 7],  # B at 5 comes after the step of A has ended
    ("A" * 20 + "B" * 20) * 2: to(80),
    "AAABBB": to(6),
    "ABBB": to(4),
    "AB": [2],
    "ABBBBBB" + "AB" * 3 + "A" + "B" * 30 + "AB": [7, 9, 11, 13, 44, 46],
    "ABAB" + "CDCD": [2, 4, 6, 8],
    "ABABAB" + "CDCDCD" + "EFEFEF": list(range(2, 20, 2)),
}


@pytest.mark.parametrize(("pattern", "ends"), PATTERNS.items(), ids=[pattern[:12] for pattern in PATTERNS])
def test_updates_end_steps(pattern, ends):
    assert ends_of(pattern) == ends


MOST = MISSED_RATIO * 2 + MISSED_SLACK  # updates of an optimizer that has made two in a step


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        (("A", "A", "A"), [[], [1, 2], to(3), to(3)]),  # at once, from the second update on
        (("AB", "A"), [[], [2], [2, 3]]),
        # A short second phase is a part of the step: the step of the last A waits, because B may follow again.
        (("AAA" + "B" * (MISSED_BY_NEW - 1) + "A",), [to(3), [1, 2, 3, 3 + MISSED_BY_NEW]]),
        (
            ("AAA" + "B" * (MISSED_BY_NEW - 1), "B", "B"),
            [to(3), to(3 + MISSED_BY_NEW), to(4 + MISSED_BY_NEW), to(4 + MISSED_BY_NEW)],
        ),
        (("A" + "B" * MISSED_IN_FIRST_STEP, "B"), [[], to(2 + MISSED_IN_FIRST_STEP), None]),
        # The step of the last A has as many updates of B as before, and each later B is a step.
        (("ABB" * 2 + "A" + "B" * MOST, "B"), [[3, 6], [3, 6, *range(9, 9 + MOST)], None]),
        (("AAA", "drop A B", "B", "B"), [to(3), to(3), to(3), to(5), to(5)]),
        (("ABAB", "drop A", "B"), [[2], [2], None, [2, 4, 5]]),  # the step of A has had its B
        (("ABA", "drop A", "B"), [[2], None, None, [2, 4]]),
        (("A", "drop A B", "B", "drop B C", "C", "drop C D", "D"), [*[None] * 7, to(4)]),
        (("AB", "discard_pending"), [[], [], []]),
        (("ABAB", "discard_pending"), [[2], [2], [2]]),
        (("ABAB", "close"), [[2], [2, 4], [2, 4]]),
        (("ABAB", "end_pending", "AB"), [[2], [2, 4], [2, 4], [2, 4, 6]]),
    ],
)
def test_steps_end_as_soon_as_they_are_known(events, ends):
    found = run(*events)
    assert found == [ours if expected is None else expected for ours, expected in zip(found, ends, strict=True)]


def test_new_optimizer_with_reused_id_becomes_primary():
    updates = Updates()
    for _ in range(5):
        updates.of("A")
        updates.optimizers.clear()
    updates.detector.close()
    assert updates.ends == [1, 2, 3, 4, 5]


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


@pytest.mark.parametrize(("pattern", "ends"), [("aaa", [1]), ("abab", [2])])
def test_a_step_at_whose_end_the_training_ends_is_not_ended_again(pattern, ends):
    updates = Updates()

    def end(at_ns):
        updates.ends.append(at_ns)
        raise KeyboardInterrupt

    updates.detector = StepDetector(end)
    with pytest.raises(KeyboardInterrupt):
        updates.of(pattern)
    updates.detector.close()
    assert updates.ends == ends
