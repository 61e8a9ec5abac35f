import pytest

from tests.support.stacks import ASKED_NS, stacks_of, training_at
from training_profiler.storage.stack_files import (
    decode_stacks,
    encode_stacks,
    read_request,
    read_stacks,
    write_request,
    write_stacks,
)

STACKS = stacks_of(3, training_at("train.py:88 train", section="data_loading", since_s=1.5))


def test_a_request_and_stacks_survive_their_files_and_those_of_another_rank_are_left_out(tmp_path):
    assert read_request(tmp_path) is None
    write_request(tmp_path, ASKED_NS)
    assert read_request(tmp_path) == ASKED_NS
    write_stacks(tmp_path, STACKS)
    assert read_stacks(tmp_path) == {3: STACKS}
    (tmp_path / "stacks" / "rank3.json").rename(tmp_path / "stacks" / "rank4.json")
    assert read_stacks(tmp_path) == {}


def test_only_the_stacks_of_the_last_answered_request_are_read(tmp_path):
    write_stacks(tmp_path, stacks_of(0, asked_ns=ASKED_NS))
    write_stacks(tmp_path, stacks_of(1, asked_ns=ASKED_NS + 5))
    assert list(read_stacks(tmp_path)) == [1]
    assert list(read_stacks(tmp_path, ASKED_NS)) == [0]
    assert read_stacks(tmp_path, ASKED_NS + 9) == {}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"asked_ns":-1}', b'{"asked_ns":"x"}', b"[" * 10_000])
def test_files_of_others_are_left_out(tmp_path, content):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "request.json").write_bytes(content)
    (tmp_path / "stacks" / "rank0.json").write_bytes(content)
    assert read_request(tmp_path) is None
    assert read_stacks(tmp_path) == {}


def test_link_in_place_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "stacks").symlink_to("elsewhere")
    with pytest.raises(NotADirectoryError):
        write_stacks(tmp_path, STACKS)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_texts_of_other_processes_are_escaped():
    planted = stacks_of(0, training_at("a\x1b[31m.py:1 f"), host="no\nde")
    decoded = decode_stacks(encode_stacks(planted))
    assert "\x1b" not in decoded.threads[0].frames[1].file
    assert "\n" not in decoded.host
