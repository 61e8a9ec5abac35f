import itertools
import threading

import pytest

from tests.support.store import FakeServer, FakeStore, rank_of
from training_profiler.ranks import channel as channel_module
from training_profiler.ranks import stores as store_module
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.message import Heartbeat, Message, unpack


def guard(part, work):
    work()


@pytest.fixture
def server(monkeypatch):
    server = FakeServer()
    store = FakeStore(server)
    monkeypatch.setattr(store_module, "descriptor_of", lambda store: store)
    monkeypatch.setattr(store_module, "is_connected", lambda store: store.server.is_up)
    monkeypatch.setattr(store_module, "default_store", lambda: store)
    monkeypatch.setattr(store_module, "group_mark", lambda: True)
    monkeypatch.setattr(channel_module, "cannot_answer", lambda _: False)
    return server


def channel_of(rank, clock, world_size=2, wait_s=2.0, heartbeat=Heartbeat):
    return RankChannel(rank_of(rank, world_size), wait_s, False, guard, clock=clock, heartbeat=heartbeat)


def message_of(server, rank):
    return unpack(server.values[f"training_profiler/0.0/{rank}"])


def test_rank_without_news_sends_a_heartbeat_every_interval(server, clock):
    channel = channel_of(1, clock, heartbeat=lambda: Heartbeat(7, ("backward_pass",), 3.0, "node1"))
    channel.poll_once()
    channel.poll_once()
    assert server.calls.count("set") == 1
    assert "multi_get" not in server.calls  # it need not follow rank 0
    assert message_of(server, 1).data == b""
    clock.advance(1.0)
    channel.outbox.put(b"one")
    channel.poll_once()
    clock.advance(1.0)
    channel.poll_once()
    last = message_of(server, 1)
    assert (last.data, last.heartbeat, last.sequence) == (b"one", Heartbeat(7, ("backward_pass",), 3.0, "node1"), 3)


def test_unsent_update_is_sent_once_a_transport_works(server, clock, tmp_path):
    channel = channel_of(1, clock)
    server.is_up = False
    channel.outbox.put(b"one")
    channel.poll_once()
    assert "did not reach rank 0" in channel.notes()[0]
    channel.stores.use_folder(tmp_path)
    channel.poll_once()
    assert unpack((tmp_path / "ranks" / "1.json").read_bytes()).data == b"one"
    assert channel.notes() == []


def test_rank_0_stops_waiting_at_its_deadline(server, clock):
    channel = channel_of(0, clock)
    channel._until_ns = clock() + 10**9
    assert not channel.poll_once()
    clock.advance(1.0)
    assert channel.poll_once()


def test_thread_transports_messages_and_ends_after_close(server, monkeypatch):
    monkeypatch.setattr(store_module, "_session_numbers", itertools.repeat(0))  # as in two processes
    first, second = RankChannel(rank_of(0, 2), 5.0, False, guard), RankChannel(rank_of(1, 2), 5.0, False, guard)
    before = threading.active_count()
    first.outbox.name_run("run")
    for channel in (first, second):
        channel.start()
        channel.start()
    assert threading.active_count() == before + 2
    second.outbox.put(b"last", is_final=True)
    second.close()
    first.close()
    assert first.inbox.received()[1].data == b"last"
    for thread in threading.enumerate():
        if thread.name == "training_profiler ranks":
            thread.join(60)
    assert threading.active_count() == before


def test_single_rank_has_no_thread_to_wake(clock):
    channel = channel_of(0, clock, world_size=1)
    before = threading.active_count()
    channel.start()
    channel.read_soon()
    assert channel.stores.wakes.empty()
    channel.close()
    assert threading.active_count() == before


def test_hanging_server_does_not_delay_close(server, monkeypatch):
    stuck, release = threading.Event(), threading.Event()

    def hang(self, key, value):
        stuck.set()
        release.wait(120)

    monkeypatch.setattr(FakeStore, "set", hang)
    monkeypatch.setattr(channel_module, "OWN_SEND_S", 0.01)
    channel = RankChannel(rank_of(1, 2), 0.0, False, guard)
    channel.start()
    thread = channel._thread
    assert stuck.wait(60)
    channel.outbox.put(b"last", is_final=True)
    channel.close()
    assert thread.is_alive()
    release.set()
    thread.join(60)


def test_heartbeats_and_reads_get_rarer_with_more_ranks(server, clock):
    small, large = channel_of(1, clock, 2), channel_of(1, clock, 16384)
    assert (small._pause_s(), large._pause_s()) == (0.02, 163.84 / 50)
    clock.advance(40.0)
    assert (small._pause_s(), large._pause_s()) == (1.0, 163.84)


def test_frequent_reports_do_not_each_cause_a_read(server, clock):
    first, second = channel_of(0, clock), channel_of(1, clock)
    first.poll_once()
    for number, is_read in ((1, True), (2, False)):
        clock.advance(0.1)
        second.outbox.put(b"%d" % number)
        second.poll_once()
        first.poll_once()
        first.read_soon()
        first.poll_once()
        assert (first.inbox.received()[1].data == b"%d" % number) is is_read


def test_close_does_not_wait_if_no_thread_can_start(server, clock, monkeypatch):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    channel = channel_of(1, clock)
    channel.start()
    channel.outbox.put(b"one", is_final=True)
    channel.close()
    assert server.calls.count("set") == 0
    assert channel.notes() == [
        "ranks: the last measurements of this rank did not reach rank 0: "
        "can't create new thread at interpreter shutdown"
    ]


def at_steps(steps):
    return lambda: Heartbeat(steps)


@pytest.mark.parametrize("way", ["store", "file"])
def test_all_ranks_hear_of_the_last_step_from_rank_0(server, clock, tmp_path, way):
    server.is_up = way == "store"
    channels = [channel_of(rank, clock, 3, heartbeat=at_steps(100 + rank)) for rank in range(3)]
    for channel in channels:
        channel.follow_end(True)
        channel.poll_once()
    channels[0].end_in(7)
    channels[0].poll_once()
    assert channels[0].end_step == (107 if way == "store" else None)  # nothing says it to the others
    for channel in channels:
        channel.stores.use_folder(tmp_path)
    clock.advance(1.0)
    for channel in channels:
        channel.poll_once()
    assert [channel.end_step for channel in channels] == [107] * 3
    assert 0 not in channels[0].inbox.received()


def test_a_message_of_rank_0_without_a_step_ends_nothing(server, clock):
    first, second = channel_of(0, clock), channel_of(1, clock)
    second.follow_end(True)
    first.stores.connect()
    for data in (b"", b"soon", b"-3"):
        first.outbox.send_message(Message(Heartbeat(), data))
        clock.advance(1.0)
        second.poll_once()
        assert second.end_step is None
