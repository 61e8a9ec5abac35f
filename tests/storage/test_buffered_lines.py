from training_profiler.storage.journal import BufferedLines


def test_lines_keep_their_order_and_the_last_rank_summary():
    held = BufferedLines()
    for kind, line in (("interval", b"1\n"), ("rank", b"a\n"), ("epoch_begin", b"2\n"), ("rank", b"b\n")):
        held.add(kind, line)
    assert held.drain() == b"1\n2\nb\n"
    assert (held.drain(), held.dropped) == (b"", 0)


def test_beyond_the_line_limit_the_oldest_are_dropped_and_counted():
    held = BufferedLines(most_lines=2)
    for kind, line in (("epoch_begin", b"0\n"), ("interval", b"1\n"), ("interval", b"2\n"), ("interval", b"3\n")):
        held.add(kind, line)
    assert (held.drain(), held.dropped) == (b"2\n3\n", 1)


def test_beyond_the_byte_limit_the_oldest_are_dropped():
    held = BufferedLines(most_bytes=5)
    for line in (b"111\n", b"2\n", b"33\n"):
        held.add("interval", line)
    assert (held.drain(), held.dropped) == (b"2\n33\n", 1)


def test_a_line_above_the_limit_is_dropped():
    held = BufferedLines(most_bytes=5)
    held.add("interval", b"123456\n")
    assert (held.drain(), held.dropped) == (b"", 1)


def test_only_intervals_count_as_measured():
    held = BufferedLines()
    held.add("epoch_begin", b"0\n")
    held.add("rank", b"0\n")
    assert not held.has_intervals
    held.add("interval", b"0\n")
    assert held.has_intervals
