from training_profiler.storage.journal import BufferedLines


def test_lines_come_back_in_their_order_and_what_the_rank_told_last_once():
    held = BufferedLines()
    for kind, line in (("interval", b"1\n"), ("rank", b"a\n"), ("epoch_begin", b"2\n"), ("rank", b"b\n")):
        held.add(kind, line)
    assert held.drain() == b"1\n2\nb\n"
    assert (held.drain(), held.dropped) == (b"", 0)


def test_of_too_many_lines_the_oldest_go_and_intervals_are_counted():
    held = BufferedLines(most_lines=2)
    for kind, line in (("epoch_begin", b"0\n"), ("interval", b"1\n"), ("interval", b"2\n"), ("interval", b"3\n")):
        held.add(kind, line)
    assert (held.drain(), held.dropped) == (b"2\n3\n", 1)


def test_of_too_many_bytes_the_oldest_go():
    held = BufferedLines(most_bytes=5)
    for line in (b"111\n", b"2\n", b"33\n"):
        held.add("interval", line)
    assert (held.drain(), held.dropped) == (b"2\n33\n", 1)


def test_a_line_that_is_too_long_by_itself_goes_as_well():
    held = BufferedLines(most_bytes=5)
    held.add("interval", b"123456\n")
    assert (held.drain(), held.dropped) == (b"", 1)


def test_only_intervals_are_measured():
    held = BufferedLines()
    held.add("epoch_begin", b"0\n")
    held.add("rank", b"0\n")
    assert not held.has_intervals
    held.add("interval", b"0\n")
    assert held.has_intervals
