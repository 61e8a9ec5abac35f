"""From what ranks told of themselves to figures of all of them."""

from collections.abc import Mapping, Sequence

from training_profiler.rank_figures import RanksFigures
from training_profiler.statistics.rank_sums import RankSums


def ranks_figures(
    told: Sequence[RankSums],
    world_size: int,
    *,
    before: Mapping[int, RankSums] | None = None,
    heard_s_ago: Mapping[int, float] | None = None,
    silent_after_s: float | None = None,
) -> RanksFigures | None:
    """Return the figures of all ranks; None where there is one, or where no rank has told anything.

    Args:
        told: what each rank has told last, in any order.
        world_size: how many ranks there are.
        before: what they had told at the last report, by rank: the figures are of the steps since; None for all.
        heard_s_ago: how long ago each was heard of, by rank; None where they come from files.
        silent_after_s: how long a rank may be silent that is not at its end.
    """
    return None
