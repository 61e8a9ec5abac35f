import msgspec
import pytest

from tests.support.store import rank_of
from training_profiler.aggregation.totals import Totals
from training_profiler.base.sections import SectionNames
from training_profiler.model.ranks import RankId
from training_profiler.ranks import exchange as exchange_module
from training_profiler.ranks.exchange import RankExchange
from training_profiler.ranks.message import Heartbeat, ReceivedMessage
from training_profiler.ranks.summary import RankSummary
from training_profiler.safety.fault_guard import FaultGuard


class FakeChannel:
    def __init__(self):
        self.messages, self.finished, self.sent, self.is_started = {}, [], [], False
        self.outbox = self.inbox = self.stores = self
        self.every_s = 1.0

    def start(self):
        self.is_started = True

    def put(self, data, is_final):
        self.sent.append((data, is_final))

    def received(self):
        return self.messages

    def close(self, is_hurried):
        self.finished.append(is_hurried)

    def notes(self):
        return []


class Ranks:
    """The exchange of one rank, and the calls of ``all_ranks_stats``."""

    def __init__(self, monkeypatch, clock, rank=0, world_size=3):
        self.clock, self.channel, self.summaries, self.calls = clock, FakeChannel(), [], []
        monkeypatch.setattr(exchange_module, "all_ranks_stats", self._stats)
        wall_clock = lambda: 1_000_000 + clock()  # noqa: E731
        self.exchange = RankExchange(
            rank_of(rank, world_size),
            self.channel,
            SectionNames(),
            clock,
            FaultGuard().run,
            begin_ns=400,
            wall_clock=wall_clock,
        )

    def publish(self, inside=()):
        """Keep the summary that is due, if one is."""
        summary = self.exchange.due_summary(RUN, inside=inside)
        self.summaries += [] if summary is None else [summary]

    def publish_final(self, inside=(), ended_by=None):
        """Keep the final summary, if there are other ranks."""
        summary = self.exchange.final_summary(RUN, inside=inside, ended_by=ended_by)
        self.summaries += [] if summary is None else [summary]

    def _stats(self, summaries, world_size, **rest):
        self.calls.append((summaries, world_size, rest))
        return ("stats", len(self.calls))

    def receive(self, rank, steps, heartbeat=None, ago=0.0, **rest):
        summary = RankSummary(RankId(rank, 3, "node1"), steps=steps, **rest)
        self.channel.messages[rank] = ReceivedMessage(
            msgspec.json.encode(summary.to_data()), ago, heartbeat or Heartbeat(steps)
        )


@pytest.fixture
def ranks(monkeypatch, clock):
    return Ranks(monkeypatch, clock)


RUN = Totals(0, 0)


def test_single_rank_publishes_nothing_and_has_no_stats_nor_have_ranks_but_the_first(monkeypatch, clock):
    alone, second = Ranks(monkeypatch, clock, world_size=1), Ranks(monkeypatch, clock, rank=1)
    alone.publish()
    alone.publish_final(inside=(), ended_by=None)
    alone.exchange.close()
    assert alone.exchange.stats(RUN) is second.exchange.stats(RUN) is None
    assert (alone.summaries, alone.calls, alone.channel.finished, second.calls) == ([], [], [], [])


def test_summary_has_wall_clock_times_of_begin_and_sending(ranks, clock):
    assert clock() == 1_000
    clock.advance_ns(500)
    ranks.publish()
    assert (ranks.summaries[0].begin_ns, ranks.summaries[0].sent_ns) == (1_000_400, 1_001_500)


@pytest.mark.parametrize(("ended_by", "is_hurried"), [(None, False), ("SIGTERM", True), ("ValueError", True)])
def test_final_summary_is_immediate_and_failing_rank_closes_quickly(ranks, ended_by, is_hurried):
    ranks.publish()
    ranks.publish_final(inside=("forward_pass",), ended_by=ended_by)
    assert ranks.channel.finished == []
    ranks.exchange.close()
    assert (ranks.summaries[1].is_final, ranks.summaries[1].ended_by) == (True, ended_by)
    assert ranks.channel.finished == [is_hurried]


def test_interval_stats_use_new_steps_of_ranks_with_enough(ranks):
    for rank, steps in ((1, 100), (2, 100)):
        ranks.receive(rank, steps)
    ranks.exchange.stats(RUN, of_interval=True)
    ranks.exchange.new_interval()
    ranks.receive(1, 108)
    ranks.receive(2, 107)
    ranks.exchange.stats(RUN, of_interval=True)
    ranks.exchange.stats(RUN)
    assert [rest["before"] and list(rest["before"]) for _, _, rest in ranks.calls] == [None, [1], None]
    assert ranks.calls[1][2]["before"][1].steps == 100


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"[]", b"{}", b"null", b'{"schema":99}', b"[" * 100_000, b'{"schema":1,"who":{"rank":1},"sections":5}'],
)
def test_garbled_message_is_left_out_and_reported(ranks, data):
    ranks.receive(2, steps=40)
    ranks.channel.messages[1] = ReceivedMessage(data, 1.0)
    ranks.exchange.stats(RUN)
    ranks.exchange.stats(RUN, of_interval=True)
    assert [summary.who.rank for summary in ranks.calls[0][0]] == [0, 2]
    assert ranks.exchange.notes() == ["ranks: messages of 1 of them (first: rank 1) are of another version, or garbled"]


def test_rank_with_only_a_heartbeat_is_included_and_a_message_in_the_name_of_another_rank_left_out(ranks):
    ranks.channel.messages[1] = ReceivedMessage(b"", 1.0, Heartbeat(3, ("data_loading",), 1.0, "node1"))
    ranks.exchange.stats(RUN)
    summary = ranks.calls[0][0][1]
    assert (str(summary.who), summary.steps, summary.inside) == ("rank 1 (node1)", 3, ("data_loading",))
    assert ranks.exchange.notes() == []
    ranks.receive(1, steps=40)
    ranks.channel.messages[2] = ranks.channel.messages[1]
    ranks.exchange.stats(RUN, of_interval=True)
    assert [summary.who.rank for summary in ranks.calls[1][0]] == [0, 1]


def decoded(ranks, monkeypatch):
    """Return the ranks whose messages are decoded from now on."""
    ranks_decoded, original = [], exchange_module.rank_summary_from_data

    def decode(data):
        ranks_decoded.append(data["who"]["rank"])
        return original(data)

    monkeypatch.setattr(exchange_module, "rank_summary_from_data", decode)
    return ranks_decoded


def test_read_ahead_decodes_twenty_ranks_a_second_in_turn(monkeypatch, clock):
    ranks = Ranks(monkeypatch, clock, world_size=101)
    ranks_decoded = decoded(ranks, monkeypatch)
    for rank in range(1, 51):
        ranks.receive(rank, steps=40)
    for _ in range(4):
        clock.advance(1.0)
        ranks.exchange.read_ahead(ranks.channel.received())
    assert ranks_decoded == list(range(1, 51))
    clock.advance(1000.0)
    for rank in range(1, 51):
        ranks.receive(rank, steps=41)
    ranks.exchange.read_ahead(ranks.channel.received())
    assert ranks_decoded[50:] == list(range(1, 21))


def test_periodic_report_decodes_some_ranks_and_the_final_one_all(monkeypatch, clock):
    ranks = Ranks(monkeypatch, clock, world_size=1001)
    for steps in (40, 50):
        for rank in range(1, 1001):
            ranks.receive(rank, steps)
        if steps == 40:
            ranks.exchange.stats(RUN, of_interval=True)
            assert {summary.steps for summary in ranks.calls[0][0][1:]} == {40}
    ranks.exchange.stats(RUN, of_interval=True)
    assert [summary.steps for summary in ranks.calls[1][0][1:]].count(50) == 128
    ranks.exchange.stats(RUN)
    assert {summary.steps for summary in ranks.calls[2][0][1:]} == {50}


def test_stats_of_a_finished_run_are_computed_once(ranks):
    ranks.publish_final(inside=(), ended_by=None)
    assert ranks.exchange.stats(RUN) == ranks.exchange.stats(RUN)
    assert len(ranks.calls) == 1


def test_without_a_group_there_are_no_stats_before_a_message(ranks):
    ranks.exchange.rank.has_group = False
    assert ranks.exchange.stats(RUN) is None
    ranks.receive(1, 5)
    assert ranks.exchange.stats(RUN) == ("stats", 1)
