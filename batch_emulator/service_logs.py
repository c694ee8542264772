"""The log files of a node, as ComputeNode_UploadBatchServiceLogs sends them to a container.

The service sends what its agent wrote. Here that is what the emulator knows of the node: its
changes of state, and what its start task printed [S].
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from batch_emulator.events import Event, Events
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.model import Node

_START_TASK = ("stdout.txt", "stderr.txt")


def within(when: datetime, start: datetime, end: datetime | None) -> bool:
    """Whether a message of that time was asked for."""
    return start <= when and (end is None or when <= end)


def collect(
    folder: Path,
    events: Events,
    node: Node,
    layout: NodeLayout,
    period: tuple[datetime, datetime | None],
) -> list[tuple[str, Path]]:
    """Names and files with a message in the period; the agent's log is written to `folder`.

    A file is sent whole, so that it may hold more than was asked for (docs).
    """
    found: list[tuple[str, Path]] = []
    lines = [event for event in events.after(0) if _of(event, node)]
    if any(within(event.time, *period) for event in lines):
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".log", delete=False) as log:
            log.writelines(json.dumps(event.document()) + "\n" for event in lines)
        found.append(("agent.log", Path(log.name)))
    return [*found, *_printed(layout, period)]


def _of(event: Event, node: Node) -> bool:
    return event.kind.startswith("node.") and event.entity == f"{node.pool.id}/{node.id}"


def _printed(
    layout: NodeLayout, period: tuple[datetime, datetime | None]
) -> Iterator[tuple[str, Path]]:
    start, _ = period
    for name in _START_TASK:
        path = layout.startup / name
        if path.is_file() and not path.is_symlink():
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            if written >= start:
                yield f"startup/{name}", path
