"""The cost exports that Azure writes to a container of the stack (`runner:cost_export`).

Cost Management writes `FOLDER/EXPORT/YYYYMMDD-YYYYMMDD/RUN/part_0_0001.csv`, where each run of a
period has all of its rows again:
https://learn.microsoft.com/azure/cost-management-billing/costs/tutorial-improved-exports
(read 2026-11-29). No export of Azure was tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runner.azure.storage.blobs import BlobContainer, BlobInfo
from runner.features.reconcile.bill import CostExport, join_exports, parse_content
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection

STORED = "azure"  # in place of a file: `runner cost --reconcile azure`
_PART = re.compile(r"(?P<period>(?:.*/)?\d{8}-\d{8})/(?P<run>.*)/[^/]+\.csv(\.gz)?", re.IGNORECASE)
_NEVER = datetime(1, 1, 1, tzinfo=UTC)


def newest_parts(blobs: Iterable[BlobInfo]) -> Sequence[BlobInfo]:
    """Return the files of the newest run of each period, by name; other blobs are ignored."""
    runs: dict[str, dict[str, list[BlobInfo]]] = {}
    for blob in blobs:
        if found := _PART.fullmatch(blob.name):
            runs.setdefault(found["period"], {}).setdefault(found["run"], []).append(blob)
    newest = (max(found.values(), key=_written) for found in runs.values())
    return sorted((part for parts in newest for part in parts), key=lambda part: part.name)


def _written(parts: Sequence[BlobInfo]) -> datetime:
    return max(part.modified or _NEVER for part in parts)


def load_stored(connection: Connection) -> CostExport:
    """Return the rows of the newest exports of all months in the container of the stack.

    Raises:
        RunnerError: R-COST-STORED, the stack has no such container, or no export yet; or
            R-COST-EXPORT, an export is invalid.
    """
    name = connection.outputs.container_costs
    if name is None:
        raise RunnerError(
            "R-COST-STORED",
            "the stack writes no cost exports",
            why="runner:cost_export is off in the stack's file",
            fix="set runner:cost_export: true in the stack's file and deploy it, or name a file",
        )
    container = BlobContainer(connection.blob_service(), name)
    parts = newest_parts(container.list(""))
    if not parts:
        raise RunnerError(
            "R-COST-STORED",
            f"container {name} has no cost export yet",
            why="Azure writes the first one within a day of the deployment",
            fix="try again tomorrow, or start it in the portal (Cost Management, Exports, Run now)",
        )
    account = connection.outputs.batch_account
    found = [
        parse_content(content, Path(part.name), account)
        for part in parts
        if (content := container.read(part.name)) is not None
    ]
    return join_exports(found)
