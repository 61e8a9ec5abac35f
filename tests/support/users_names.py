"""Names that users may give to sections: printable ones, above all those of rows, labels and metrics of ours."""

from typing import Final

from hypothesis import strategies as st

from training_profiler.base.sections import (
    INVALID_NAME,
    KNOWN_SECTIONS,
    LINES_IN_WORKERS,
    NESTED_SECTIONS,
    OTHER_NAMES,
    OUTSIDE_STEPS_SECTIONS,
    PROFILER,
    USERS,
)
from training_profiler.model.snapshot import OTHER, OUTSIDE_STEPS
from training_profiler.reports.page_charts import REST as SMALLER
from training_profiler.reports.sections import LABELS, OF_EPOCHS, OURS, WITHOUT_START, WITHOUT_STEPS
from training_profiler.sinks.tensorboard_events import REST

# A section of such a name is the section that the profiler records itself.
STANDARD: Final = tuple(section.name for section in KNOWN_SECTIONS if section.name not in NESTED_SECTIONS)
KEYS: Final = (
    OTHER, OUTSIDE_STEPS, PROFILER, OTHER_NAMES, INVALID_NAME, REST, SMALLER, LINES_IN_WORKERS, *NESTED_SECTIONS,
    PROFILER.strip("()"),
)  # fmt: skip
WITHIN_OURS: Final = tuple(
    f"{outer}/{inner}"
    for outer in (*OUTSIDE_STEPS_SECTIONS, PROFILER)
    for inner in ("forward_pass", "first_fetch", "other", "mine", "", "a/b")
)
_TABLES: Final = (LABELS, OF_EPOCHS, WITHOUT_START, WITHOUT_STEPS)
LABELS_OF_OURS: Final = tuple(sorted({label for table in _TABLES for label in table.values()} - set(STANDARD)))
# With characters that forms of output, trackers, disks and JavaScript treat specially.
SPECIAL: Final = (
    "a*b", "a_b", "a?b", "a b", "a  b", " a", "a//b", "a/_/b", "a/../b", "../a", "/a", "a/", ".", "..", "a.b", "a-2",
    "a,b", 'a"b', "a'b", "=1+1", "a:b", "a;b", "a|b", "a\\b", "a\\nb", "{a}", '{a="b"}', "<b>&amp;", "</script>", "%s",
    "a=b", "$a", "#a", "@a", "[a]", "(a) (b)", "é", "e\u0301", "名前", "🙂", "A", "a", "1", "null", "true", "NaN",
    "__proto__", "constructor", "a_avg", "interval_a_percentage", "total_time", "step", "time", "section", "count",
    "remaining sections", "remaining_sections", "smaller sections", "x" * 120, "x" * 121, "x" * 122, "y" * 5_000,
    "whole step", "training", "loader",
)  # fmt: skip

printable_text = st.text(
    st.characters(exclude_categories=("C", "Zl", "Zp", "Zs"), include_characters=" "), max_size=130
)
plain = st.one_of(st.sampled_from((*KEYS, *WITHIN_OURS, *LABELS_OF_OURS, *SPECIAL)), printable_text)
names = st.one_of(
    plain,
    st.builds(lambda times, name: USERS * times + name, st.integers(1, 3), plain),
    st.builds("{}{}".format, plain, st.sampled_from(("_", "-2", " ", ")", "_avg", f" {OURS}"))),
    st.builds("{}/{}".format, st.sampled_from((*OUTSIDE_STEPS_SECTIONS, PROFILER, "mine")), plain),
).filter(lambda name: name.strip() and name.isprintable() and name not in STANDARD)
