"""Which kinds of parallelism a trace shows, by what communicates, and the advice that fits each."""

import re
from collections.abc import Sequence
from typing import Final

from training_profiler.trace_analysis.communication import Collective
from training_profiler.trace_analysis.launches import Launches, Nesting, nearest
from training_profiler.trace_analysis.load.columns import NONE, Bools, Columns, distinct
from training_profiler.trace_analysis.phases import BACKWARD, MARKS, OPTIMIZER

DDP: Final = "DDP"
FSDP: Final = "FSDP"
PIPELINE: Final = "pipeline"
EXPERT: Final = "expert"
TENSOR: Final = "tensor"
ALL_TO_ALL: Final = "all-to-all"
# Operators and annotations by which torch marks each kind.
_NAMES: Final = {
    FSDP: re.compile(r"FSDP|FullyShardedDataParallel|fully_shard", re.IGNORECASE),
    DDP: re.compile(r"DistributedDataParallel|distributed(\.|::)ddp|ddp::reducer"),
    ALL_TO_ALL: re.compile(r"^nccl:all_to_all|^c10d::alltoall|all_to_all_single"),
    PIPELINE: re.compile(r"^nccl:(send|recv)\b|^c10d::(send|recv_)|PipelineStage|pipelining"),
}
_SHARDED: Final = frozenset({"all_gather", "reduce_scatter"})
LEAST_IN_FORWARD: Final = 4  # collectives of a step; a norm or a metric makes one or two
ADVICE: Final = {
    DDP: "larger DDP buckets (bucket_cap_mb), gradient accumulation with no_sync(), gradients in bfloat16",
    FSDP: "prefetching in FSDP (forward_prefetch), larger wrapped units, reshard_after_forward=False",
    PIPELINE: "more micro-batches for the pipeline, an interleaved schedule, stages of equal time",
    ALL_TO_ALL: "shards of equal load (embedding tables, sequences), all-to-all overlapped with computation",
    EXPERT: "experts of equal load (capacity, auxiliary loss), all-to-all overlapped with the shared expert",
    TENSOR: "sequence parallelism or async tensor parallelism (overlap with the matrix products), smaller groups",
}
_LARGER: Final = "larger messages, and "
_ONE_STREAM: Final = f"{_LARGER}communication on a stream of its own beside computation"
_OWN_STREAM: Final = f"{_LARGER}computation meanwhile that does not need what is communicated"


def parallelism_of(
    columns: Columns,
    nesting: Nesting,
    launches: Launches,
    communicates: Bools,
    collectives: Sequence[Collective],
    repetitions: int,
) -> tuple[str, ...]:
    """Return the kinds of parallelism that the trace shows."""
    kinds = {collective.kind for collective in collectives}
    is_host = columns.is_of("cpu_op", "user_annotation")
    names = [columns.names[i] for i in distinct(columns.name[is_host]).tolist()] if communicates.any() else []
    seen = [kind for kind, pattern in _NAMES.items() if any(map(pattern.search, names))]
    if FSDP not in seen and kinds >= _SHARDED:
        seen.append(FSDP)
    if "all_to_all" in kinds or "dispatch_combine" in kinds:
        seen = [kind for kind in seen if kind != ALL_TO_ALL] + [EXPERT]
    elif ALL_TO_ALL in seen:  # NCCL makes it of sends and receives
        sent_ns = sum(each.total_ns for each in collectives if each.kind == "send_recv")
        if 2 * sent_ns > sum(each.total_ns for each in collectives):
            seen = [ALL_TO_ALL, *(kind for kind in seen if kind != ALL_TO_ALL)]
    if FSDP not in seen and _in_forward(columns, nesting, launches, communicates) >= LEAST_IN_FORWARD * max(
        1, repetitions
    ):
        seen.append(TENSOR)
    return tuple(seen)


def _in_forward(columns: Columns, nesting: Nesting, launches: Launches, communicates: Bools) -> int:
    """Return how many all-reduces were launched outside of backward pass and optimizer; 0 without a backward pass."""
    is_host = columns.is_of("cpu_op", "user_annotation")
    elsewhere = columns.named(lambda name: any(MARKS[phase].search(name) for phase in (BACKWARD, OPTIMIZER)), is_host)
    reduces = columns.named(lambda name: "reduce" in name.lower() and "scatter" not in name.lower(), communicates)
    by = launches.operator[reduces]
    if not elsewhere.any():
        return 0
    return int((nearest(nesting, elsewhere)[by[by != NONE]] == NONE).sum())


def advice(seen: Sequence[str], has_own_stream: bool) -> str:
    """Return what makes communication cost less under these kinds of parallelism."""
    return "; ".join(ADVICE[kind] for kind in seen) or (_OWN_STREAM if has_own_stream else _ONE_STREAM)
