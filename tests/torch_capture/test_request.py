import os

import pytest

from training_profiler.torch_capture.request import REQUEST, Request, RequestBox, write_request


def test_request_is_read_once_unless_it_is_older_than_the_process(tmp_path):
    box = RequestBox(began_wall_ns=0)
    assert box.read_new(str(tmp_path)) is None
    write_request(tmp_path, 3, (2,))
    assert [box.read_new(str(tmp_path)) for _ in range(2)] == [Request(3, (2,)), None]
    write_request(tmp_path, None, None)
    assert box.read_new(str(tmp_path)) == Request(None, None)
    os.utime(tmp_path / REQUEST, ns=(500, 500))
    assert RequestBox(began_wall_ns=501).read_new(str(tmp_path)) is RequestBox(0).read_new(None) is None
    assert [Request(ranks=None).is_of(5), Request().is_of(0), Request().is_of(1)] == [True, True, False]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": -1, "ranks": null}', '{"steps": 1, "ranks": ["x"]}'])
def test_invalid_file_is_not_a_request(tmp_path, text):
    (tmp_path / REQUEST).write_text(text)
    assert RequestBox(0).read_new(str(tmp_path)) is None
