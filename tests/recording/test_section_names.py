import pytest

from training_profiler.recording.section_names import SectionNames
from training_profiler.text import printable


def test_ids_count_from_one_and_stay():
    names = SectionNames()
    assert [names.id_of("a"), names.id_of("b"), names.id_of("a")] == [1, 2, 1]


def test_id_zero_stands_for_no_section():
    assert SectionNames().names[0] == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\r", "\\r"),
        ("a\x00b", "a\\x00b"),
        ("\u202eevil", "\\u202eevil"),
        ("\udc80", "\\udc80"),
        ("Überblick 🙂", "Überblick 🙂"),
        ("a b", "a b"),
    ],
)
def test_control_characters_are_escaped(name, shown):
    assert printable(name) == shown


def test_name_of_120_characters_is_kept():
    assert printable("x" * 120) == "x" * 120


def test_longer_name_is_cut_to_120_characters():
    assert printable("x" * 121) == "x" * 119 + "…"


def test_names_that_print_alike_share_an_id():
    names = SectionNames()
    assert names.id_of("a\n") == names.id_of("a\\n")


def test_invalid_names_share_an_id_and_a_count():
    names = SectionNames()
    ids = {names.id_of(3), names.id_of(""), names.id_of(None)}
    assert (len(ids), names.invalid_count, names.invalid_example) == (1, 3, "3")


def test_name_with_failing_repr_is_shown_by_type():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    names = SectionNames()
    names.id_of(Broken())
    assert names.invalid_example == "<Broken>"


def test_names_beyond_the_limit_are_counted_once_each():
    names = SectionNames(limit=1)
    for name in ("a", "b", "c", "b"):
        names.id_of(name)
    assert len(names.further_names) == 2
    assert [names.is_kept(name) for name in ("a", "b")] == [True, False]


def test_full_table_still_finds_its_names():
    names = SectionNames(limit=1)
    known = names.id_of("a")
    names.id_of("b")
    assert names.id_of("a") == known


def test_full_table_still_finds_names_with_control_characters():
    names = SectionNames(limit=1)
    known = names.id_of("a\n")
    names.id_of("b")
    assert names.id_of("a\n") == known
