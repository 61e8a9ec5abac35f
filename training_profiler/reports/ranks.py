"""What reports say of the ranks of a training; nothing where there is one, and nothing that is not known."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from training_profiler.snapshot.ranks import AllRanksStats, HostStats, RankStats, SectionSpread
from training_profiler.snapshot.snapshot import Snapshot
from training_profiler.units import seconds_text

LINES: Final = "lines"
MOST_SECTIONS: Final = 12
SHOWN_ABOVE: Final = 0.005  # of step time: sections that every rank is in, and none for longer, are left out
MOST_NAMED: Final = 4  # ranks or hosts in one line
WIDTH: Final = 118  # of a line; names of hosts can be long
UNEVEN_STEPS: Final = 1  # by which ranks that were ended by a signal may differ all the same
EVEN_BELOW: Final = 0.01  # of a step: ranks whose work differs by less are told as even
_HEADERS: Final = ("a step", "min", "median", "max", "imbalance", "slowest")


def rank_lines(snapshot: Snapshot, layout: str) -> list[str]:
    """Return the block on ranks: who was heard, the spread of sections, synchronization, the slowest, hosts, clocks."""
    ranks = snapshot.ranks
    if ranks is None:
        return []
    shown, left_out = _shown(ranks)
    sentences = [
        *_synchronization(ranks),
        *_work(ranks),
        *_hosts(ranks),
        *_not_heard(ranks),
        *_clocks(ranks),
        *ranks.left_out,
    ]
    if layout == LINES:
        return [_heard(ranks), *(_greppable(spread) for spread in shown), *sentences]
    more = [f"  and {left_out} more sections (in report.json)"] if left_out else []
    return [_heard(ranks), *_table(shown), *more, *(line for one in sentences for line in _wrapped(one))]


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def exchange_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on DDP's exchange of gradients; none without."""
    exchange = snapshot.exchange
    if exchange is None:
        return []
    overlap = "overlap not measured"
    if exchange.overlap is not None:
        overlap = f"{exchange.overlap:.0%} of it while gradients were computed"
    exposed = (
        "" if not exchange.exposed_s else f"; the backward pass is {seconds_text(exchange.exposed_s)} longer by it"
    )
    timed = "" if exchange.sampled >= exchange.count else f" ({exchange.sampled} of {exchange.count} timed)"
    return [f"DDP: {seconds_text(exchange.total_s)} an exchange{timed}, {overlap}{exposed}"]


def attempt_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on the attempts before this one, of a training that was started anew; none without."""
    attempts = snapshot.attempts
    if not attempts:
        return []
    told = attempts[-MOST_NAMED:]
    parts = []
    for one in told:
        end = ""
        if not one.is_ended:
            end = ", its end was not written"
        elif one.ended_by:
            end = f" and was ended by {one.ended_by}"
        parts.append(f"attempt {one.number} made {one.steps} steps in {one.wall_s:.1f}s{end}")
    earlier = f"{len(attempts) - len(told)} earlier; " if len(told) < len(attempts) else ""
    known = [] if snapshot.ranks is None else [one.who.attempt for one in snapshot.ranks.ranks]
    this = max(known, default=attempts[-1].number + 1)
    return [f"Attempts: this is attempt {this}, counted from 0; {earlier}{'; '.join(parts)}"]


def ranges_text(numbers: Iterable[int], most: int = 8) -> str:
    """Return numbers in order with those side by side as ranges: 0-3, 7; at most ``most`` of them."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    return ", ".join([*told, "..."] if len(ranges) > most else told)


def of_ranks(numbers: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-2, 5"."""
    return f"rank{'s' * (len(numbers) != 1)} {ranges_text(numbers)}"


def _heard(ranks: AllRanksStats) -> str:
    hosts = f", on {len(ranks.hosts)} hosts" if len(ranks.hosts) > 1 else ""
    first = ranks.ranks[0].who.rank if ranks.ranks else 0
    return f"Ranks: {len(ranks.ranks)} of {ranks.world_size} heard{hosts} (the figures above are rank {first}'s)"


def _shown(ranks: AllRanksStats) -> tuple[list[SectionSpread], int]:
    at_least_s = SHOWN_ABOVE * (ranks.step_s or 0.0)
    steps = max((one.steps for one in ranks.ranks), default=0)
    worth = [
        one
        for one in ranks.sections
        if one.never_on or (one.max_s >= at_least_s if one.is_of_step else one.slowest_total_s >= at_least_s * steps)
    ]
    return worth[:MOST_SECTIONS], max(0, len(worth) - MOST_SECTIONS)


def _table(spreads: Sequence[SectionSpread]) -> list[str]:
    if not spreads:
        return []
    rows = [_HEADERS, *(_cells(spread) for spread in spreads)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADERS))]
    return [
        "  "
        + "  ".join(
            f"{cell:<{width}}" if at in (0, len(_HEADERS) - 1) else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(spread: SectionSpread) -> tuple[str, ...]:
    name = _cut(spread.name, 28)
    if not spread.is_of_step:
        name += " (each)"
    if spread.is_device:
        name += " (device)"
    if spread.ranks == 1:
        where = f"only on {_short(str(spread.slowest), 26)}"
        return name, "", "", seconds_text(spread.max_s), "", where
    where = _short(str(spread.slowest), 26)
    if spread.never_on:
        few = len(spread.never_on) <= MOST_NAMED
        where += f"; not on {of_ranks(spread.never_on) if few else f'{len(spread.never_on)} ranks'}"
    return (
        name,
        *(seconds_text(seconds) for seconds in (spread.min_s, spread.median_s, spread.max_s)),
        f"+{spread.imbalance:.0%}",
        where,
    )


def _greppable(spread: SectionSpread) -> str:
    never_on = f", never_on={ranges_text(spread.never_on)}" if spread.never_on else ""
    return (
        f"rank_spread {spread.name}: min={spread.min_s:.4f}s, median={spread.median_s:.4f}s, max={spread.max_s:.4f}s, "
        f"imbalance={spread.imbalance:.1%}, slowest={spread.slowest}, per={'step' if spread.is_of_step else 'span'}, "
        f"ranks={spread.ranks}{never_on}" + (", time=device" if spread.is_device else "")
    )


def _synchronization(ranks: AllRanksStats) -> list[str]:
    if ranks.sync_share is None:
        return ["Synchronization: not measured (no exchange between ranks was seen that tells its time)"]
    line = f"Synchronization: {ranks.sync_share:.1%} of step time, mean over ranks"
    if ranks.waiting_share is not None and ranks.transfer_share is not None:
        line += (
            f": {ranks.waiting_share:.1%} waiting for slower ranks, {ranks.transfer_share:.1%} exchange "
            f"(by {ranks.compared_steps} steps)"
        )
    return [line]


def _work(ranks: AllRanksStats) -> list[str]:
    """Return what the slowest rank works a step against the fastest, what it spends that on, and since when."""
    known = [one for one in ranks.ranks if one.work_s]
    if len(known) < 2:
        return []
    slowest, fastest = max(known, key=_work_s), min(known, key=_work_s)
    if _work_s(slowest) - _work_s(fastest) <= EVEN_BELOW * (slowest.step_s or 0.0):
        return [f"Work: {seconds_text(_work_s(fastest))} to {seconds_text(_work_s(slowest))} a step on all ranks"]
    line = (
        f"Slowest: {_short(str(slowest.who), 40)} works {seconds_text(_work_s(slowest))} a step, "
        f"the fastest {seconds_text(_work_s(fastest))}"
    )
    return [line + _cause_text(slowest) + _since(slowest)]


def _cause_text(rank: RankStats) -> str:
    """Return where a rank takes longer than the others, to follow on what it takes; "" where that is not known."""
    if not rank.cause or rank.cause_s is None:
        return ""
    place = f" ({_cut(rank.place, 60)})" if rank.place else ""
    return f"; {seconds_text(rank.cause_s)} of that in {_cut(rank.cause, 36)}{place}"


def _since(rank: RankStats) -> str:
    if rank.slower_since_step is None or rank.against_itself is None:
        return ""
    return f"; since step {rank.slower_since_step} {rank.against_itself:.2f} times its work before"


def _hosts(ranks: AllRanksStats) -> list[str]:
    known = [host for host in ranks.hosts if host.work_s]
    if len(known) < 2:
        return []
    if len(known) <= MOST_NAMED:
        return [f"Hosts: {', '.join(_host(host) for host in known)}"]
    in_order = sorted(known, key=lambda host: -(host.work_s or 0.0))
    named = ", ".join(_host(host) for host in in_order[: MOST_NAMED - 1])
    return [f"Hosts: {named} work longest of {len(known)}; the least {_host(in_order[-1])}"]


def _host(host: HostStats) -> str:
    return f"{_short(host.host, 30)} ({of_ranks(host.ranks)}) {seconds_text(host.work_s or 0.0)} a step"


def _not_heard(ranks: AllRanksStats) -> list[str]:
    silent = [one for one in ranks.ranks if one.who.rank in set(ranks.silent)]
    silent.sort(key=lambda one: (one.steps, one.who.rank))  # who stopped first is what the others wait for
    lines = [f"Not heard: {_last_of(one)}" for one in silent[:MOST_NAMED]]
    if len(silent) > MOST_NAMED:
        lines.append(f"Not heard either: {of_ranks([one.who.rank for one in silent[MOST_NAMED:]])}")
    if ranks.missing:
        lines.append(f"Never heard: {of_ranks(ranks.missing)}")
    return lines + _endings(ranks)


def _endings(ranks: AllRanksStats) -> list[str]:
    """Return how other ranks ended, where the first one has: what ended them, or that no last word of them came."""
    first, *others = ranks.ranks
    if not first.is_final:
        return []
    told = [f"{_short(str(one.who), 40)} after {one.steps} steps by {one.ended_by}" for one in others if one.ended_by]
    lines = [f"Ended: {'; '.join([*told[:MOST_NAMED], *(['...'] if len(told) > MOST_NAMED else [])])}"] if told else []
    silent = set(ranks.silent)
    without = [one for one in others if not one.is_final and one.who.rank not in silent]
    if without and not any(sentence.startswith("killed before the end") for sentence in ranks.left_out):
        last = ", ".join(f"{_short(str(one.who), 40)} (last after {one.steps} steps)" for one in without[:MOST_NAMED])
        more = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
        lines.append(f"No last word, killed or still at work: {last}{more}")
    steps = sorted({one.steps for one in ranks.ranks if one.is_final})
    if len(steps) > 1 and steps[-1] - steps[0] > UNEVEN_STEPS:
        fewest = min((one for one in ranks.ranks if one.is_final), key=lambda one: one.steps)
        lines.append(f"Steps: {steps[0]} ({_short(str(fewest.who), 40)}) to {steps[-1]}, not the same on all ranks")
    return lines


def _last_of(one: RankStats) -> str:
    seconds = "" if one.heard_s_ago is None else f" for {one.heard_s_ago:.0f}s"
    inside = f" inside {_cut(' > '.join(one.inside), 50)}" if one.inside else ""
    return f"{_short(str(one.who), 40)}{seconds}, last after {one.steps} steps{inside}"


def _clocks(ranks: AllRanksStats) -> list[str]:
    clocks = ranks.clocks
    if clocks is None:
        return []
    if clocks.error_s is None:
        return [f"Clocks: those of {clocks.hosts} hosts are not aligned: no barrier or exchange of the program tells"]
    of = "" if clocks.aligned_hosts == clocks.hosts else f" of {clocks.hosts}"
    return [
        f"Clocks: {clocks.aligned_hosts}{of} hosts aligned by {clocks.meetings} barriers and exchanges of the program, "
        f"within {seconds_text(clocks.error_s)}"
    ]


def _work_s(rank: RankStats) -> float:
    return rank.work_s or 0.0


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _short(name: str, most: int) -> str:
    """Return the name of a rank or host; of a long one its end is left, which tells it from others."""
    kept = most // 2
    return name if len(name) <= most else f"{name[: most - kept - 1]}…{name[-kept:]}"
