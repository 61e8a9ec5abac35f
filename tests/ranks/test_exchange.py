import dataclasses
import json

import pytest

from tests.support.store import rank_of
from training_profiler.aggregation.totals import Totals
from training_profiler.ranks import exchange as exchange_module
from training_profiler.ranks.channel import ReceivedMessage
from training_profiler.ranks.exchange import RankExchange, update_to_bytes
from training_profiler.ranks.message import Heartbeat
from training_profiler.ranks.summary import RankSummary
from training_profiler.recording.section_names import SectionNames
from training_profiler.safety.fault_guard import FaultGuard
from training_profiler.snapshot.ranks import RankId


class FakeBoard:
    def __init__(self):
        self.of_others, self.finished, self.sent, self.is_started = {}, [], [], False

    def start(self):
        self.is_started = True

    def send(self, data, is_final):
        self.sent.append((data, is_final))

    def received(self):
        return self.of_others

    def close(self, is_hurried):
        self.finished.append(is_hurried)

    def notes(self):
        return []


class Ranks:
    """Peers of one rank, and what ``all_ranks_stats`` was asked."""

    def __init__(self, monkeypatch, clock, rank=0, world_size=3):
        self.clock, self.channel, self.told, self.asked = clock, FakeBoard(), [], []
        monkeypatch.setattr(exchange_module, "all_ranks_stats", self._figures)
        wall_clock = lambda: 1_000_000 + clock()  # noqa: E731
        self.peers = RankExchange(
            rank_of(rank, world_size),
            self.channel,
            SectionNames(),
            clock,
            FaultGuard().run,
            begin_ns=400,
            wall_clock=wall_clock,
        )

    def tell(self, inside=()):
        """Keep the summary that is due, if one is."""
        summary = self.peers.due_summary(RUN, inside=inside)
        self.told += [] if summary is None else [summary]

    def tell_last(self, inside=(), ended_by=None):
        """Keep the final summary, if there are other ranks."""
        summary = self.peers.final_summary(RUN, inside=inside, ended_by=ended_by)
        self.told += [] if summary is None else [summary]

    def _figures(self, told, world_size, **rest):
        self.asked.append((told, world_size, rest))
        return ("figures", len(self.asked))

    def hear(self, rank, steps, alive=None, ago=0.0, **rest):
        sums = RankSummary(RankId(rank, 3, "node1"), steps=steps, **rest)
        self.channel.of_others[rank] = ReceivedMessage(update_to_bytes(sums.to_data()), ago, alive or Heartbeat(steps))


@pytest.fixture
def ranks(monkeypatch, clock):
    return Ranks(monkeypatch, clock)


RUN = Totals(0, 0)


@pytest.mark.parametrize(("world_size", "every_s"), [(2, 1.0), (1024, 10.24), (16384, 163.84)])
def test_a_rank_tells_at_most_every_so_often(monkeypatch, clock, world_size, every_s):
    ranks = Ranks(monkeypatch, clock, 1, world_size)
    ranks.tell()
    clock.advance(every_s - 0.01)
    ranks.tell()
    assert len(ranks.told) == 1
    clock.advance(0.01)
    ranks.tell(inside=("forward_pass",))
    assert ranks.told[1].inside == ("forward_pass",)


def test_the_only_rank_tells_nothing_and_has_no_figures(monkeypatch, clock):
    alone = Ranks(monkeypatch, clock, world_size=1)
    alone.tell()
    alone.tell_last(inside=(), ended_by=None)
    alone.peers.close()
    assert alone.peers.stats(RUN) is None
    assert (alone.told, alone.asked, alone.channel.finished) == ([], [], [])


def test_what_is_told_bears_the_wall_clocks_time_of_the_begin_and_of_now(ranks, clock):
    assert clock() == 1_000
    clock.advance_ns(500)
    ranks.tell()
    assert (ranks.told[0].begin_ns, ranks.told[0].sent_ns) == (1_000_400, 1_001_500)


@pytest.mark.parametrize(("ended_by", "is_hurried"), [(None, False), ("SIGTERM", True), ("ValueError", True)])
def test_the_last_is_told_at_once_and_a_rank_that_fails_does_not_wait_long(ranks, ended_by, is_hurried):
    ranks.tell()
    ranks.tell_last(inside=("forward_pass",), ended_by=ended_by)
    assert ranks.channel.finished == []
    ranks.peers.close()
    assert (ranks.told[1].is_final, ranks.told[1].ended_by) == (True, ended_by)
    assert ranks.channel.finished == [is_hurried]


def test_rank_0_asks_for_figures_of_its_own_fresh_sums_and_what_was_heard(ranks):
    ranks.hear(2, steps=40, ago=3.5)
    ranks.peers.stats(RUN)
    told, world_size, rest = ranks.asked[0]
    assert ([one.who.rank for one in told], world_size) == ([0, 2], 3)
    assert (rest["heard_s_ago"], rest["before"], rest["silent_after_s"]) == ({0: 0.0, 2: 3.5}, None, 10.0)


def test_other_ranks_make_no_figures(monkeypatch, clock):
    second = Ranks(monkeypatch, clock, rank=1)
    assert second.peers.stats(RUN) is None
    assert second.asked == []


def test_figures_of_an_interval_are_of_the_steps_since_where_there_are_enough(ranks):
    for rank, steps in ((1, 100), (2, 100)):
        ranks.hear(rank, steps)
    ranks.peers.stats(RUN, of_interval=True)
    ranks.peers.new_interval()
    ranks.hear(1, 108)
    ranks.hear(2, 107)
    ranks.peers.stats(RUN, of_interval=True)
    ranks.peers.stats(RUN)
    assert [rest["before"] and list(rest["before"]) for _, _, rest in ranks.asked] == [None, [1], None]
    assert ranks.asked[1][2]["before"][1].steps == 100


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"[]", b"{}", b"null", b'{"schema":99}', b"[" * 100_000, b'{"schema":1,"who":{"rank":1},"sections":5}'],
)
def test_what_cannot_be_understood_is_left_out_and_said(ranks, data):
    ranks.hear(2, steps=40)
    ranks.channel.of_others[1] = ReceivedMessage(data, 1.0)
    ranks.peers.stats(RUN)
    ranks.peers.stats(RUN, of_interval=True)
    assert [one.who.rank for one in ranks.asked[0][0]] == [0, 2]
    assert ranks.peers.notes() == ["ranks: what 1 of them told (first: rank 1) is of another version, or garbled"]


def test_a_rank_that_only_gave_a_sign_of_life_is_heard_of_and_no_garbage(ranks):
    ranks.channel.of_others[1] = ReceivedMessage(b"", 1.0, Heartbeat(3, ("data_loading",), 1.0, "node1"))
    ranks.peers.stats(RUN)
    heard = ranks.asked[0][0][1]
    assert (str(heard.who), heard.steps, heard.inside) == ("rank 1 (node1)", 3, ("data_loading",))
    assert ranks.peers.notes() == []


def test_what_says_it_is_another_rank_is_left_out(ranks):
    ranks.hear(1, steps=40)
    ranks.channel.of_others[2] = ranks.channel.of_others[1]
    ranks.peers.stats(RUN)
    assert [one.who.rank for one in ranks.asked[0][0]] == [0, 1]


def test_where_a_rank_is_comes_from_its_last_sign_of_life(ranks):
    ranks.hear(1, steps=40, alive=Heartbeat(41, ("data_loading",)), inside=("backward_pass",))
    ranks.peers.stats(RUN)
    assert ranks.asked[0][0][1].inside == ("data_loading",)


def test_what_was_decoded_is_not_decoded_again(ranks, monkeypatch):
    ranks.hear(1, steps=40)
    ranks.peers.stats(RUN)
    monkeypatch.setattr(exchange_module, "rank_summary_from_data", None)
    ranks.peers.stats(RUN)
    assert len(ranks.asked[1][0]) == 2


def decoded(ranks, monkeypatch):
    """Return what is decoded from now on, by rank."""
    seen, original = [], exchange_module.rank_summary_from_data

    def decode(data):
        seen.append(data["who"]["rank"])
        return original(data)

    monkeypatch.setattr(exchange_module, "rank_summary_from_data", decode)
    return seen


def test_what_another_thread_has_decoded_is_ready_for_the_report(ranks, monkeypatch, clock):
    seen = decoded(ranks, monkeypatch)
    ranks.hear(1, steps=40)
    clock.advance(1.0)
    ranks.peers.read_ahead(ranks.channel.received())
    ranks.peers.stats(RUN)
    assert seen == [1]
    assert [one.who.rank for one in ranks.asked[0][0]] == [0, 1]


def test_beside_the_training_twenty_ranks_a_second_are_decoded_in_turn(monkeypatch, clock):
    ranks = Ranks(monkeypatch, clock, world_size=101)
    seen = decoded(ranks, monkeypatch)
    for rank in range(1, 51):
        ranks.hear(rank, steps=40)
    for _ in range(4):
        clock.advance(1.0)
        ranks.peers.read_ahead(ranks.channel.received())
    assert seen == list(range(1, 51))
    clock.advance(1000.0)
    for rank in range(1, 51):
        ranks.hear(rank, steps=41)
    ranks.peers.read_ahead(ranks.channel.received())
    assert seen[50:] == list(range(1, 21))


def test_a_periodic_report_decodes_a_part_of_many_and_the_last_one_all(monkeypatch, clock):
    ranks = Ranks(monkeypatch, clock, world_size=1001)
    for steps in (40, 50):
        for rank in range(1, 1001):
            ranks.hear(rank, steps)
        if steps == 40:
            ranks.peers.stats(RUN, of_interval=True)
            assert {one.steps for one in ranks.asked[0][0][1:]} == {40}
    ranks.peers.stats(RUN, of_interval=True)
    assert [one.steps for one in ranks.asked[1][0][1:]].count(50) == 128
    ranks.peers.stats(RUN)
    assert {one.steps for one in ranks.asked[2][0][1:]} == {50}


def test_when_the_run_is_over_its_figures_are_made_once(ranks):
    ranks.tell_last(inside=(), ended_by=None)
    assert ranks.peers.stats(RUN) == ranks.peers.stats(RUN)
    assert len(ranks.asked) == 1


def test_told_data_is_json_of_the_sums():
    sums = RankSummary(RankId(1, 3), steps=5)
    assert json.loads(update_to_bytes(sums.to_data()))["who"]["rank"] == dataclasses.asdict(sums.who)["rank"]


def test_without_a_group_there_are_no_ranks_before_another_is_heard_of(ranks):
    ranks.peers._rank.has_group = False
    assert ranks.peers.stats(RUN) is None
    ranks.hear(1, 5)
    assert ranks.peers.stats(RUN) == ("figures", 1)
