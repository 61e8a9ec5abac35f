"""The ranks of a training in reports; nothing of a single one, and nothing that is unknown."""

from collections.abc import Iterable, Sequence
from typing import Final

from training_profiler.base.units import MS_PER_S, ms_text
from training_profiler.recording.section_names import name_of
from training_profiler.reports.layout import Layout, column_width, shortened, table
from training_profiler.snapshot.ranks import AllRanksStats, HostStats, RankStats, SectionSpread
from training_profiler.snapshot.snapshot import Snapshot

MOST_SECTIONS: Final = 12
SHOWN_ABOVE: Final = 0.005  # of step time: shorter sections that every rank entered are left out
MOST_NAMED: Final = 4  # ranks or hosts in one line
UNEVEN_STEPS: Final = 1  # ranks that were ended by a signal may differ by this many steps
EVEN_BELOW: Final = 0.01  # of a step: ranks whose work differs by less are even
_HEADERS: Final = ("section", "min\n(ms)", "median\n(ms)", "max\n(ms)", "imbalance", "slowest")
_INDENT: Final = "  "


def rank_lines(snapshot: Snapshot, layout: Layout) -> list[str]:
    """Return the block on ranks: the spread of sections, synchronization, the slowest rank, hosts, clocks."""
    ranks = snapshot.ranks
    if ranks is None:
        return []
    shown, left_out = _shown(ranks)
    sentences = [
        *_synchronization(ranks),
        *_work(ranks),
        *_hosts(ranks),
        *_not_reporting(ranks),
        *_clocks(ranks),
        *ranks.left_out,
    ]
    if layout.is_lines:
        return [_title(ranks), *(_greppable(spread) for spread in shown), *sentences]
    more = [f"  and {left_out} more sections (in report.json)"] if left_out else []
    rest = [line for sentence in sentences for line in layout.wrap(sentence)]
    return [*layout.wrap(_title(ranks)), *_table(shown, layout), *more, *rest]


def exchange_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on the gradient synchronization of DDP; none without DDP."""
    exchange = snapshot.exchange
    if exchange is None:
        return []
    overlap = "overlap not measured"
    if exchange.overlap is not None:
        overlap = f"{exchange.overlap:.0%} overlapped with the backward pass"
    exposed = f"; it extends the backward pass by {ms_text(exchange.exposed_s)}" if exchange.exposed_s else ""
    timed = "" if exchange.sampled >= exchange.count else f" ({exchange.sampled} of {exchange.count} timed)"
    return [f"DDP: {ms_text(exchange.total_s)} per gradient all-reduce{timed}, {overlap}{exposed}"]


def attempt_lines(snapshot: Snapshot) -> list[str]:
    """Return a line on earlier attempts of a training that its launcher restarted; none without."""
    attempts = snapshot.attempts
    if not attempts:
        return []
    last = attempts[-MOST_NAMED:]
    parts = []
    for attempt in last:
        end = ""
        if not attempt.is_ended:
            end = ", its end was not recorded"
        elif attempt.ended_by:
            end = f" and was ended by {attempt.ended_by}"
        parts.append(f"attempt {attempt.number} made {attempt.steps} steps in {attempt.wall_s:.1f} s{end}")
    earlier = f"{len(attempts) - len(last)} earlier; " if len(last) < len(attempts) else ""
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


def _title(ranks: AllRanksStats) -> str:
    hosts = f", on {len(ranks.hosts)} hosts" if len(ranks.hosts) > 1 else ""
    first = ranks.ranks[0].who.rank if ranks.ranks else 0
    return f"Ranks: {len(ranks.ranks)} of {ranks.world_size} reported{hosts} (all figures above are of rank {first})"


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
    if not spreads:
        return []
    numbers = [_numbers(spread) for spread in spreads]
    columns = list(zip(*numbers, strict=True))
    fixed = sum(column_width(header, column) for header, column in zip(_HEADERS[1:5], columns, strict=True))
    room = max(36, layout.width - fixed - len(_INDENT) - 2)
    name_width = min(room // 2, max(len(_name(spread)) for spread in spreads))
    rows = [
        (shortened(_name(spread), name_width), *cells, shortened(_where(spread), room - name_width))
        for spread, cells in zip(spreads, numbers, strict=True)
    ]
    lines = [_INDENT + line.rstrip() for line in table(_HEADERS, rows, left=(0, 5))]
    return ["Per step, over ranks (each: per call):", *lines]


def _name(spread: SectionSpread) -> str:
    each, device = " (each)" * (not spread.is_of_step), " (device)" * spread.is_device
    return name_of(spread.name) + each + device


def _numbers(spread: SectionSpread) -> tuple[str, str, str, str]:
    """Return min, median, max and imbalance; of a section on a single rank only its time."""
    if spread.ranks == 1:
        return "", "", _ms(spread.max_s), ""
    return _ms(spread.min_s), _ms(spread.median_s), _ms(spread.max_s), f"+{spread.imbalance:.0%}"


def _ms(seconds: float) -> str:
    return f"{seconds * MS_PER_S:.2f}"


def _where(spread: SectionSpread) -> str:
    """Return the slowest rank, and the ranks that never entered the section."""
    if spread.ranks == 1:
        return f"only on {spread.slowest}"
    if not spread.never_on:
        return str(spread.slowest)
    few = len(spread.never_on) <= MOST_NAMED
    return f"{spread.slowest}; not on {of_ranks(spread.never_on) if few else f'{len(spread.never_on)} ranks'}"


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
    known = [rank for rank in ranks.ranks if rank.work_s]
    if len(known) < 2:
        return []
    slowest, fastest = max(known, key=_work_s), min(known, key=_work_s)
    if _work_s(slowest) - _work_s(fastest) <= EVEN_BELOW * (slowest.step_s or 0.0):
        return [f"Work: {ms_text(_work_s(fastest))} to {ms_text(_work_s(slowest))} per step on all ranks"]
    line = (
        f"Slowest: {shortened(str(slowest.who), 40)} works {ms_text(_work_s(slowest))} per step, "
        f"the fastest {ms_text(_work_s(fastest))}"
    )
    return [line + _cause_text(slowest) + _since(slowest)]


def _cause_text(rank: RankStats) -> str:
    """Return the section that takes a rank longer than the others; "" where that is unknown."""
    if not rank.cause or rank.cause_s is None:
        return ""
    place = f" ({shortened(rank.place, 60)})" if rank.place else ""
    return f"; {ms_text(rank.cause_s)} of that in {shortened(name_of(rank.cause), 36)}{place}"


def _since(rank: RankStats) -> str:
    if rank.slower_since_step is None or rank.against_itself is None:
        return ""
    return f"; since step {rank.slower_since_step} {rank.against_itself:.2f}x its work before"


def _hosts(ranks: AllRanksStats) -> list[str]:
    known = [host for host in ranks.hosts if host.work_s]
    if len(known) < 2:
        return []
    if len(known) <= MOST_NAMED:
        return [f"Hosts: {', '.join(_host(host) for host in known)}"]
    in_order = sorted(known, key=lambda host: -(host.work_s or 0.0))
    named = ", ".join(_host(host) for host in in_order[: MOST_NAMED - 1])
    return [f"Hosts: the slowest of {len(known)} are {named}; the fastest is {_host(in_order[-1])}"]


def _host(host: HostStats) -> str:
    return f"{shortened(host.host, 30)} ({of_ranks(host.ranks)}) {ms_text(host.work_s or 0.0)} per step"


def _not_reporting(ranks: AllRanksStats) -> list[str]:
    numbers = set(ranks.silent)
    silent = [rank for rank in ranks.ranks if rank.who.rank in numbers]
    silent.sort(key=lambda rank: (rank.steps, rank.who.rank))  # the others wait for the rank that stopped first
    lines = [f"Unresponsive: {_last_report(rank)}" for rank in silent[:MOST_NAMED]]
    if len(silent) > MOST_NAMED:
        lines.append(f"Also unresponsive: {of_ranks([rank.who.rank for rank in silent[MOST_NAMED:]])}")
    if ranks.missing:
        lines.append(f"Never reported: {of_ranks(ranks.missing)}")
    return lines + _endings(ranks)


def _endings(ranks: AllRanksStats) -> list[str]:
    """Return how other ranks ended once the first one has."""
    first, *others = ranks.ranks
    if not first.is_final:
        return []
    ended = [
        f"{shortened(str(rank.who), 40)} after {rank.steps} steps by {rank.ended_by}"
        for rank in others
        if rank.ended_by
    ]
    more = ["..."] if len(ended) > MOST_NAMED else []
    lines = [f"Ended: {'; '.join([*ended[:MOST_NAMED], *more])}"] if ended else []
    silent = set(ranks.silent)
    without = [rank for rank in others if not rank.is_final and rank.who.rank not in silent]
    if without and not any(sentence.startswith("killed before the end") for sentence in ranks.left_out):
        last = ", ".join(f"{shortened(str(rank.who), 40)} ({_last_place(rank)})" for rank in without[:MOST_NAMED])
        rest = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
        lines.append(f"No final report, killed or still running: {last}{rest}")
    steps = sorted({rank.steps for rank in ranks.ranks if rank.is_final})
    if len(steps) > 1 and steps[-1] - steps[0] > UNEVEN_STEPS:
        fewest = min((rank for rank in ranks.ranks if rank.is_final), key=lambda rank: rank.steps)
        lines.append(f"Steps: {steps[0]} ({shortened(str(fewest.who), 40)}) to {steps[-1]}, not equal on all ranks")
    return lines


def _last_report(rank: RankStats) -> str:
    seconds = "" if rank.heard_s_ago is None else f" for {rank.heard_s_ago:.0f} s"
    return f"{shortened(str(rank.who), 40)}{seconds}, {_last_place(rank)}"


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
        f"Clocks: {clocks.aligned_hosts}{of} hosts aligned from {clocks.meetings} barriers and collectives of the "
        f"program, within {ms_text(clocks.error_s)}"
    ]


def _work_s(rank: RankStats) -> float:
    return rank.work_s or 0.0
