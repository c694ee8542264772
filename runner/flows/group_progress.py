"""The runs of a group as they go on, for whoever waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from runner.azure.credentials import Connection
from runner.azure.faults import SERVICES_DOWN
from runner.core.errors import RunnerError
from runner.core.group import Group
from runner.flows.groups import GroupView, load_group_view
from runner.flows.watch import PATIENCE_S

_LOOK_S = 1.0


def group_views(connection: Connection, home: Path, group: Group) -> Iterator[GroupView | None]:
    """A view each second until all runs have ended; None while contact is lost.

    Raises RunnerError (R-SERVICES-DOWN) when that lasts.
    """
    contact = time.monotonic()
    while True:
        try:
            view, contact = load_group_view(connection, home, group), time.monotonic()
        except RunnerError as err:
            if err.code != SERVICES_DOWN or time.monotonic() - contact > PATIENCE_S:
                raise
            view = None
        yield view
        if view and all(row.status is None or row.status.state.final for row in view.rows.values()):
            return
        time.sleep(_LOOK_S)
