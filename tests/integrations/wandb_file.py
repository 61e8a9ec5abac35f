"""Reads the file of an offline W&B run: the log format of LevelDB with protobuf records."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK_BYTES, HEADER_BYTES, MAGIC = 32768, 7, b":W&B"
FULL, LAST = 1, 4  # kinds of pieces that end a record


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of a run file."""
    data = path.read_bytes()
    assert data.startswith(MAGIC)
    at, record = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER_BYTES])
        record += data[at + HEADER_BYTES : at + HEADER_BYTES + length]
        at += HEADER_BYTES + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the one run below ``folder``."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows = []
    for data in records(path):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
    return rows


def axes(folder: Path) -> dict[str, str]:
    """Return the axis of each metric, by name or pattern."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = [wandb_internal_pb2.Record.FromString(data) for data in records(path)]
    metrics = [record.metric for record in found if record.WhichOneof("record_type") == "metric"]
    return {metric.name or metric.glob_name: metric.step_metric for metric in metrics}


def artifacts(folder: Path) -> list[tuple[str, str, set[str]]]:
    """Return the artifacts of the run: name, type, and names of the files."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = [wandb_internal_pb2.Record.FromString(data) for data in records(path)]
    logged = [record.artifact for record in found if record.WhichOneof("record_type") == "artifact"]
    return [(each.name, each.type, {entry.path for entry in each.manifest.contents}) for each in logged]
