import os

import pytest

from training_profiler.torch_capture.request import REQUEST, Request, RequestBox, write_request


def test_a_request_is_taken_once(tmp_path):
    box = RequestBox(began_wall_ns=0)
    assert box.look(str(tmp_path)) is None
    write_request(tmp_path, 3, (2,))
    assert box.look(str(tmp_path)) == Request(3, (2,))
    assert box.look(str(tmp_path)) is None
    write_request(tmp_path, None, None)
    assert box.look(str(tmp_path)) == Request(None, None)


def test_a_request_from_before_the_process_began_is_none(tmp_path):
    write_request(tmp_path, 3, (0,))
    os.utime(tmp_path / REQUEST, ns=(500, 500))
    assert RequestBox(began_wall_ns=501).look(str(tmp_path)) is None


def test_without_a_run_folder_there_is_none():
    assert RequestBox(0).look(None) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": -1, "ranks": null}', '{"steps": 1, "ranks": ["x"]}'])
def test_a_file_of_somebody_elses_is_none(tmp_path, text):
    (tmp_path / REQUEST).write_text(text)
    assert RequestBox(0).look(str(tmp_path)) is None


def test_all_ranks_or_those_that_are_named_record():
    assert [Request(ranks=None).is_of(5), Request().is_of(0), Request().is_of(1)] == [True, True, False]
