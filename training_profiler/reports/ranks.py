"""The ranks of a training in reports; nothing of a single one, and nothing that is unknown."""

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Final

from training_profiler.base.sections import name_of
from training_profiler.base.units import MS_PER_S, ms_text
from training_profiler.model.ranks import AllRanksStats, HostStats, RankStats, SectionSpread
from training_profiler.model.snapshot import Snapshot
from training_profiler.reports.layout import Layout, column_width, fitting, shortened, table

MOST_SECTIONS: Final = 12
SHOWN_ABOVE: Final = 0.005  # of step time: shorter sections that every rank entered are left out
MOST_NAMED: Final = 4  # ranks or hosts in one line
UNEVEN_STEPS: Final = 1  # ranks that were ended by a signal may differ by this many steps
EVEN_BELOW: Final = 0.01  # of a step: ranks whose work differs by less are even
MIN_TEXTS: Final = 36  # of names and places together; of a narrow terminal half
_HEADERS: Final = ("section", "min\n(ms)", "median\n(ms)", "max\n(ms)", "imbalance", "slowest")
_INDENT: Final = "  "


def rank_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return the block on ranks: the spread of sections, synchronization, the slowest rank, hosts, clocks."""
    ranks = snapshot.ranks
    if ranks is None:
        return []
    shown, left_out = _shown(ranks)
    hosts = f", on {len(ranks.hosts)} hosts" if len(ranks.hosts) > 1 else ""
    first = ranks.ranks[0].who.rank if ranks.ranks else 0
    title = f"Ranks: {len(ranks.ranks)} of {ranks.world_size} reported{hosts} (all figures above are of rank {first})"
    sentences = [
        *_synchronization(ranks),
        *_work(ranks),
        *_hosts(ranks),
        *_not_reporting(ranks),
        *_clocks(ranks),
        *ranks.left_out,
    ]
    if layout.is_lines:
        return [title, *(_greppable(spread) for spread in shown), *sentences]
    more = [f"  and {left_out} more sections (in report.json)"] if left_out else []
    rest = [line for sentence in sentences for line in layout.wrap(sentence)]
    return [*layout.wrap(title), *_table(shown, layout), *more, *rest]


def unusual_ranks(snapshot: Snapshot) -> list[str]:
    """Return which ranks are silent, missing, or ended before the others, and what is left out for that."""
    return [] if snapshot.ranks is None else [*_not_reporting(snapshot.ranks), *snapshot.ranks.left_out]


def exchange_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on the gradient synchronization of DDP; none without DDP."""
    exchange = snapshot.gradient_sync
    if exchange is None:
        return []
    share = exchange.overlap
    overlap = "overlap not measured" if share is None else f"{share:.0%} overlapped with the backward pass"
    exposed = f"; it extends the backward pass by {ms_text(exchange.exposed_s)}" if exchange.exposed_s else ""
    timed = "" if exchange.sampled >= exchange.count else f" ({exchange.sampled} of {exchange.count} timed)"
    return [f"DDP: {ms_text(exchange.total_s)} per gradient all-reduce{timed}, {overlap}{exposed}"]


def attempt_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on earlier attempts of a training that its launcher restarted; none without."""
    attempts = snapshot.attempts
    if not attempts:
        return []
    parts = []
    for attempt in attempts[-MOST_NAMED:]:
        end = f" and was ended by {attempt.ended_by}" if attempt.ended_by else ""
        end = end if attempt.is_ended else ", its end was not recorded"
        parts.append(f"attempt {attempt.number} made {attempt.steps} steps in {attempt.wall_s:.1f} s{end}")
    earlier = f"{len(attempts) - MOST_NAMED} earlier; " if len(attempts) > MOST_NAMED else ""
    known = [] if snapshot.ranks is None else [rank.who.attempt for rank in snapshot.ranks.ranks]
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
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    return ", ".join([*texts, "..."] if len(ranges) > most else texts)


def of_ranks(numbers: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-2, 5"."""
    return f"rank{'s' * (len(numbers) != 1)} {ranges_text(numbers)}"


def _shown(ranks: AllRanksStats) -> tuple[list[SectionSpread], int]:
    """Return the sections to show, and how many more there would be."""
    at_least_s = SHOWN_ABOVE * (ranks.step_s or 0.0)
    steps = max((rank.steps for rank in ranks.ranks), default=0)
    long_enough = [
        spread
        for spread in ranks.sections
        if spread.never_on
        or (spread.max_s >= at_least_s if spread.is_of_step else spread.slowest_total_s >= at_least_s * steps)
    ]
    return long_enough[:MOST_SECTIONS], max(0, len(long_enough) - MOST_SECTIONS)


def _table(spreads: Sequence[SectionSpread], layout: Layout) -> list[str]:
    """Return the table of sections: of one on a single rank only its time, else also min, median and imbalance."""
    if not spreads:
        return []
    rows = []
    for spread in spreads:
        each, device = " (each)" * (not spread.is_of_step), " (device)" * spread.is_device
        times = [f"{s * MS_PER_S:.2f}" for s in (spread.min_s, spread.median_s, spread.max_s)]
        cells, where = (*times, f"+{spread.imbalance:.0%}"), str(spread.slowest)
        if spread.ranks == 1:
            cells, where = ("", "", times[2], ""), f"only on {spread.slowest}"
        elif spread.never_on:
            few = len(spread.never_on) <= MOST_NAMED
            where += f"; not on {of_ranks(spread.never_on) if few else f'{len(spread.never_on)} ranks'}"
        rows.append((name_of(spread.name) + each + device, *cells, where))
    least = min(MIN_TEXTS, layout.width // 2)
    numbers = [cells for _, *cells, _ in rows]
    kept = fitting(_HEADERS[1:5], numbers, layout.width - least - len(_INDENT) - 4, (0, 1, 3))
    fixed = sum(column_width(_HEADERS[1 + at], [cells[at] for cells in numbers]) for at in kept)
    room = max(least, layout.width - fixed - len(_INDENT) - 2)
    name_width = min(room // 2, max(len(name) for name, *_ in rows))
    shown = [
        (shortened(name, name_width), *(cells[at] for at in kept), shortened(where, room - name_width))
        for name, *cells, where in rows
    ]
    headers = (_HEADERS[0], *(_HEADERS[1 + at] for at in kept), _HEADERS[-1])
    lines = [_INDENT + line.rstrip() for line in table(headers, shown, left=(0, len(headers) - 1))]
    return ["Per step, over ranks (each: per call):", *lines]


def _greppable(spread: SectionSpread) -> str:
    never_on = f", never_on={ranges_text(spread.never_on)}" if spread.never_on else ""
    return (
        f"rank_spread {spread.name}: min={spread.min_s:.4f}s, median={spread.median_s:.4f}s, max={spread.max_s:.4f}s, "
        f"imbalance={spread.imbalance:.1%}, slowest={spread.slowest}, per={'step' if spread.is_of_step else 'span'}, "
        f"ranks={spread.ranks}{never_on}" + (", time=device" if spread.is_device else "")
    )


def _synchronization(ranks: AllRanksStats) -> list[str]:
    if ranks.sync_share is None:
        return ["Synchronization: not measured (no timed communication between ranks)"]
    line = f"Synchronization: {ranks.sync_share:.1%} of step time, mean over ranks"
    if ranks.waiting_share is not None and ranks.transfer_share is not None:
        line += (
            f": {ranks.waiting_share:.1%} waiting for slower ranks, {ranks.transfer_share:.1%} communication "
            f"(from {ranks.compared_steps} steps)"
        )
    return [line]


def _work(ranks: AllRanksStats) -> list[str]:
    """Return the work per step of the slowest and the fastest rank, and what the slowest spends more time on."""
    known = [(rank.work_s, rank) for rank in ranks.ranks if rank.work_s]
    if len(known) < 2:
        return []
    (most_s, slowest), (least_s, _) = max(known, key=itemgetter(0)), min(known, key=itemgetter(0))
    if most_s - least_s <= EVEN_BELOW * (slowest.step_s or 0.0):
        return [f"Work: {ms_text(least_s)} to {ms_text(most_s)} per step on all ranks"]
    line = f"Slowest: {_who(slowest)} works {ms_text(most_s)} per step, the fastest {ms_text(least_s)}"
    if slowest.cause and slowest.cause_s is not None:
        place = f" ({shortened(slowest.place, 60)})" if slowest.place else ""
        line += f"; {ms_text(slowest.cause_s)} of that in {shortened(name_of(slowest.cause), 36)}{place}"
    if slowest.slower_since_step is not None and slowest.work_over_earlier is not None:
        line += f"; since step {slowest.slower_since_step} {slowest.work_over_earlier:.2f}x its work before"
    return [line]


def _hosts(ranks: AllRanksStats) -> list[str]:
    known = sorted((host for host in ranks.hosts if host.work_s), key=lambda host: -(host.work_s or 0.0))
    if len(known) < 2:
        return []
    if len(known) <= MOST_NAMED:
        return [f"Hosts: {', '.join(_host(host) for host in ranks.hosts if host.work_s)}"]
    named = ", ".join(_host(host) for host in known[: MOST_NAMED - 1])
    return [f"Hosts: the slowest of {len(known)} are {named}; the fastest is {_host(known[-1])}"]


def _host(host: HostStats) -> str:
    return f"{shortened(host.host, 30)} ({of_ranks(host.ranks)}) {ms_text(host.work_s or 0.0)} per step"


def _not_reporting(ranks: AllRanksStats) -> list[str]:
    numbers = set(ranks.unresponsive)
    silent = [rank for rank in ranks.ranks if rank.who.rank in numbers]
    silent.sort(key=lambda rank: (rank.steps, rank.who.rank))  # the others wait for the rank that stopped first
    lines = []
    for rank in silent[:MOST_NAMED]:
        seconds = "" if rank.last_message_s_ago is None else f" for {rank.last_message_s_ago:.0f} s"
        lines.append(f"Unresponsive: {_who(rank)}{seconds}, {_last_place(rank)}")
    if len(silent) > MOST_NAMED:
        lines.append(f"Also unresponsive: {of_ranks([rank.who.rank for rank in silent[MOST_NAMED:]])}")
    if ranks.missing:
        lines.append(f"Never reported: {of_ranks(ranks.missing)}")
    return lines + (_endings(ranks) if ranks.ranks[0].is_final else [])


def _endings(ranks: AllRanksStats) -> list[str]:
    """Return how other ranks ended once the first one has."""
    others = ranks.ranks[1:]
    ended = [f"{_who(rank)} after {rank.steps} steps by {rank.ended_by}" for rank in others if rank.ended_by]
    more = ["..."] if len(ended) > MOST_NAMED else []
    lines = [f"Ended: {'; '.join([*ended[:MOST_NAMED], *more])}"] if ended else []
    without = [rank for rank in others if not rank.is_final and rank.who.rank not in ranks.unresponsive]
    if without and not any(sentence.startswith("killed before the end") for sentence in ranks.left_out):
        last = ", ".join(f"{_who(rank)} ({_last_place(rank)})" for rank in without[:MOST_NAMED])
        rest = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
        lines.append(f"No final report, killed or still running: {last}{rest}")
    final = [rank for rank in ranks.ranks if rank.is_final]
    fewest, most = min(final, key=attrgetter("steps")), max(rank.steps for rank in final)
    if most - fewest.steps > UNEVEN_STEPS:
        lines.append(f"Steps: {fewest.steps} ({_who(fewest)}) to {most}, not equal on all ranks")
    return lines


def _who(rank: RankStats) -> str:
    return shortened(str(rank.who), 40)


def _last_place(rank: RankStats) -> str:
    inside = f" in {shortened(' > '.join(map(name_of, rank.inside)), 50)}" if rank.inside else ""
    return f"last at step {rank.steps}{inside}"


def _clocks(ranks: AllRanksStats) -> list[str]:
    clocks = ranks.clocks
    if clocks is None:
        return []
    if clocks.error_s is None:
        return [f"Clocks: the {clocks.hosts} hosts are not aligned: the program has no barrier or collective to use"]
    of = "" if clocks.aligned_hosts == clocks.hosts else f" of {clocks.hosts}"
    return [
        f"Clocks: {clocks.aligned_hosts}{of} hosts aligned from {clocks.sync_points} barriers and collectives of the "
        f"program, within {ms_text(clocks.error_s)}"
    ]
