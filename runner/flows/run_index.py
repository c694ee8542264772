"""The index of runs, written and read by the client; `runner.node.run_index` says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.azure.blobs import BlobContainer
from runner.core.errors import RunnerError
from runner.core.run_record import RunRecord, RunResult, parse_result, parse_run
from runner.node.run_index import FOLDER, index_blob, index_metadata


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index knows of a run; `raw` of both holds that much and no more."""

    record: RunRecord
    result: RunResult | None


def index_run(
    container: BlobContainer, run: Mapping[str, Any], result: Mapping[str, Any] | None = None
) -> None:
    """Enter a run, or its outcome. An entry is a copy: that it cannot be written is no failure.

    Without a result an entry that is there stays: the run may be over already.
    """
    metadata = index_metadata(run, result)
    with suppress(RunnerError):
        container.put_metadata(index_blob(run["run_id"]), metadata, overwrite=result is not None)


def load_index(container: BlobContainer) -> dict[str, IndexEntry]:
    """All entries that can be read, by run id."""
    entries: dict[str, IndexEntry] = {}
    for name, metadata in container.list_metadata(FOLDER):
        run_id = name.removeprefix(FOLDER)
        entry = _entry(run_id, metadata)
        if entry is not None:
            entries[run_id] = entry
    return entries


def _entry(run_id: str, metadata: Mapping[str, str]) -> IndexEntry | None:
    """None for what this runner cannot read: then the run's documents say what is wrong."""
    if "run" not in metadata:
        return None
    try:
        record = parse_run(metadata["run"].encode(), run_id)
        result = metadata.get("result")
        outcome = None if result is None else parse_result(result.encode(), run_id)
    except RunnerError:
        return None
    return IndexEntry(record, outcome) if record.run_id == run_id else None
