import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.users_names import KEYS, LABELS_OF_OURS, STANDARD, WITHIN_OURS, names
from training_profiler.base.sections import OUTSIDE_STEPS_SECTIONS, USERS, SectionNames, key_of, name_of
from training_profiler.base.text import printable


def test_ids_count_from_one_and_stay():
    table = SectionNames()
    assert [table.id_of("a"), table.id_of("b"), table.id_of("a"), table.names[0]] == [1, 2, 1, ""]


def test_names_that_print_alike_share_an_id():
    table = SectionNames()
    assert table.id_of("a\n") == table.id_of("a\\n")


def test_invalid_names_share_an_id_and_a_count():
    table = SectionNames()
    ids = {table.id_of(3), table.id_of(""), table.id_of(None)}
    assert (len(ids), table.invalid_count, table.invalid_example) == (1, 3, "3")


def test_name_with_failing_repr_is_shown_by_type():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    table = SectionNames()
    table.id_of(Broken())
    assert table.invalid_example == "<Broken>"


def test_names_beyond_the_limit_are_counted_once_each():
    table = SectionNames(limit=1)
    ids = [table.id_of(name) for name in ("a", "b", "c", "b")]
    assert len(table.further_names) == 2
    assert [table.is_kept(id) for id in ids] == [True, False, False, False]


@pytest.mark.parametrize("name", ["a", "a\n"])
def test_full_table_still_finds_its_names(name):
    table = SectionNames(limit=1)
    known = table.id_of(name)
    table.id_of("b")
    assert table.id_of(name) == known


@given(st.lists(names, unique=True, max_size=50))
def test_no_two_printable_names_have_the_same_key(given_names):
    assert len(set(map(key_of, given_names))) == len(given_names)


@given(names)
def test_a_key_is_a_printable_line_that_no_row_of_ours_has_and_shows_the_name_unless_it_is_cut(name):
    key = key_of(name)
    assert key not in KEYS
    assert not key.startswith(tuple(f"{outer}/" for outer in (*OUTSIDE_STEPS_SECTIONS, "(profiler)")))
    assert name_of(key) == name or len(key) == 120 < len(USERS + name)
    assert printable(key) == key


@pytest.mark.parametrize("key", [*KEYS, *WITHIN_OURS, *STANDARD])
def test_keys_of_ours_are_shown_as_they_are(key):
    assert name_of(key) == key


@pytest.mark.parametrize("name", [*STANDARD, *LABELS_OF_OURS, "train", "user", "users:a", "mine/forward_pass"])
def test_a_name_that_is_not_a_key_of_ours_is_its_own_key(name):
    assert key_of(name) == name


def test_long_names_with_the_same_begin_have_keys_of_their_own():
    first, second = key_of("x" * 200 + "1"), key_of("x" * 200 + "2")
    assert first != second
    assert {len(first), len(second)} == {120}
    assert first.startswith("x" * 110 + "…~")


def test_the_profiler_has_its_row_in_a_full_table():
    table = SectionNames(limit=1)
    table.id_of_users("a")
    assert table.names[table.id_of_users("b")] == "(other names)"
    assert table.names[table.id_of("(profiler)")] == "(profiler)"
