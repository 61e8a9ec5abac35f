import pytest

from tests.support.store import FakeServer, FakeStore, rank_of
from training_profiler.ranks import stores as store_module
from training_profiler.ranks.channel import RankChannel
from training_profiler.ranks.message import Heartbeat, Message


def run(part, work):
    work()


class World:
    """Channels of several ranks with one store and one clock."""

    def __init__(self, monkeypatch, clock, world_size=3, has_agent_store=False):
        self.clock, self.server = clock, FakeServer()
        self.group = FakeStore(self.server)
        self.is_in_group = True  # or another number, for another group
        self.has_agent_store = has_agent_store
        self.world_size = world_size
        self.gone = set()  # processes
        monkeypatch.setattr(store_module, "descriptor_of", lambda store: store)
        monkeypatch.setattr(store_module, "is_connected", lambda store: store.server.is_up)

    def channel(self, rank, **options):
        channel = RankChannel(
            rank_of(rank, self.world_size, **options), 2.0, self.has_agent_store, run, clock=self.clock
        )
        channel.stores._find_store = lambda: self.group if self.is_in_group and self.server.is_up else None
        channel.stores._mark = lambda: self.is_in_group
        channel.inbox._is_gone = lambda process: process in self.gone
        channel.stores.connect()
        return channel


@pytest.fixture
def world(monkeypatch, clock):
    return World(monkeypatch, clock)


def data_of(channel):
    return {rank: message.data for rank, message in channel.inbox.received().items()}


def message(data, sequence=1, **rest):
    return Message(Heartbeat(), data, sequence=sequence, **rest)


def test_rank_0_reads_messages_with_their_age(world, clock):
    first, second = world.channel(0), world.channel(1)
    second.outbox.send_message(message(b"one"))
    first.inbox.read()
    clock.advance(3.0)
    first.inbox.read()
    assert {rank: (message.data, message.age_s) for rank, message in first.inbox.received().items()} == {
        1: (b"one", 3.0)
    }
    second.outbox.send_message(message(b"one", sequence=2))
    first.inbox.read(is_now=True)
    assert first.inbox.received()[1].age_s == 0.0


def test_request_for_stacks_reaches_every_rank_once_and_a_rank_that_connects_late(world):
    first, second = world.channel(0), world.channel(1)
    second.stores.ask(second.inbox.read_announcements)
    first.outbox.announce()
    assert second.inbox.asked_ns == 0
    first.outbox.ask_for_stacks(7)
    first.outbox.announce()
    first.outbox.announce()
    world.clock.advance(1.0)
    second.stores.ask(second.inbox.read_announcements)
    third = world.channel(2)
    third.stores.ask(third.inbox.read_announcements)
    assert (second.inbox.asked_ns, third.inbox.asked_ns) == (7, 7)
    assert world.server.calls.count("set") == 1
    assert "get" not in world.server.calls  # c10d waits for a missing key


@pytest.mark.parametrize(("world_size", "every_s"), [(2, 1.0), (100, 1.0), (1024, 10.24), (16384, 163.84)])
def test_rank_0_reads_at_most_every_so_often(monkeypatch, clock, world_size, every_s):
    world = World(monkeypatch, clock, world_size)
    first = world.channel(0)
    first.inbox.read()
    calls = world.server.calls.count("multi_get")
    clock.advance(every_s - 0.01)
    first.inbox.read()
    assert world.server.calls.count("multi_get") == calls == -(-(world_size - 1) // 512)
    clock.advance(0.01)
    first.inbox.read()
    assert world.server.calls.count("multi_get") == 2 * calls


@pytest.mark.parametrize("name", ["20261121-142530", "../elsewhere", "a/b", "..", ".", "", "a\nb", "x" * 500])
def test_run_name_reaches_the_other_ranks_if_it_is_a_plain_folder_name(world, name):
    first, second = world.channel(0), world.channel(1)
    second.stores.ask(second.inbox.read_announcements)
    assert second.inbox.run_name is None
    first.outbox.name_run(name)
    first.outbox.announce()
    second.stores.ask(second.inbox.read_announcements)
    assert second.inbox.run_name == (name if name[:1] == "2" else None)


def test_store_is_not_used_again_after_an_error(world, tmp_path):
    second = world.channel(1)
    second.stores.folder = tmp_path
    second.stores.connect()
    world.group.server.values = None  # set() raises
    assert second.outbox.send_message(message(b"one"))
    assert (tmp_path / "ranks" / "1.json").read_bytes().endswith(b"one")


@pytest.mark.parametrize(("has_agent_store", "way"), [(True, "set"), (False, None)])
def test_after_the_group_only_a_store_of_the_launcher_is_used(monkeypatch, clock, tmp_path, has_agent_store, way):
    world = World(monkeypatch, clock, has_agent_store=has_agent_store)
    second = world.channel(1)
    second.stores.folder = tmp_path
    world.is_in_group = False
    second.stores.connect()
    world.server.calls.clear()
    assert second.outbox.send_message(message(b"last", is_final=True))
    assert world.server.calls == ([way] if way else [])


def test_without_store_and_folder_or_on_a_full_disk_the_reason_is_kept_and_sending_tried_again(world, tmp_path):
    world.is_in_group = False
    second = world.channel(1)
    assert not second.outbox.send_message(message(b"one"))
    assert second.outbox.lost == "there is neither a store nor a folder that the ranks have in common"
    second.stores.folder = tmp_path / "missing"
    second.stores.connect()
    assert not second.outbox.send_message(message(b"one"))
    assert str(second.outbox.lost).startswith("FileNotFoundError")
    second.stores.folder.mkdir()
    assert second.outbox.send_message(message(b"one"))
    assert second.outbox.lost is None


def test_garbage_is_counted_once_and_the_last_good_message_kept(world):
    first, second = world.channel(0), world.channel(1)
    second.outbox.send_message(message(b"one"))
    first.inbox.read()
    for garbage in (b"\xff\xfe", b"\xff\xfe", b"[1,2]\n", b"7", b"[" * 100_000):
        world.server.values["training_profiler/0.0/1"] = garbage
        first.inbox.read(is_now=True)
        first.inbox.read(is_now=True)
    assert first.inbox.garbled == 4
    assert data_of(first) == {1: b"one"}


def test_files_of_impossible_ranks_and_other_attempts_are_ignored(world, tmp_path):
    first = world.channel(0)
    (tmp_path / "ranks").mkdir()
    for name in ("0.json", "3.json", "1-attempt1.json", "1.part", "x.json", "99999999999999.json"):
        (tmp_path / "ranks" / name).write_bytes(message(b"x").pack())
    first.stores.folder = tmp_path
    first.stores.connect()
    first.inbox.read()
    assert data_of(first) == {}


def test_a_killed_rank_is_awaited_until_its_last_message_had_time_to_arrive_and_a_stopped_one_again(world, clock):
    first, second = world.channel(0), world.channel(1)
    second.outbox.send_message(Message(Heartbeat(process="second"), b"one"))
    first.inbox.read(is_now=True)
    for is_gone, seconds in ((False, 0), (True, 0.15), (False, 0.15), (True, 0.19)):
        (world.gone.add if is_gone else world.gone.discard)("second")
        assert first.inbox.awaited() == 2
        clock.advance(seconds)
    assert first.inbox.awaited() == 2
    clock.advance(0.01)
    assert first.inbox.awaited() == 1  # rank 2 may still begin


def test_store_of_a_group_is_searched_a_few_times_and_not_kept(world):
    found = []
    first = world.channel(0)
    first.stores._find_store = lambda: found.append(1)
    for _ in range(20):
        first.stores.connect()
    assert found == []
    world.is_in_group = 2
    for _ in range(20):
        first.stores.connect()
    assert len(found) == 5


def test_without_a_group_no_rank_is_awaited_before_its_first_message(world):
    first, second = world.channel(0, has_group=False), world.channel(1)
    assert first.inbox.awaited() == 0
    second.outbox.send_message(message(b"one"))
    first.inbox.read()
    assert first.inbox.awaited() == 2
