"""The list of sweeps: their states, the best trial, and what they have cost so far.

A sweep is read as on its own page, so that opening it does not read it again. The list does not
wait for large ones: an update adds them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.sweeps.experiments import list_sweeps
from runner.page.ask import Ask, WebPage
from runner.page.pages.sweep import Sweep, Trial, read_costs, read_sweep, total_cost
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup
from runner.views.sweeps import SweepRow, parameter_names, sweep_line

_ROWS = 20
_MOST_ROWS = 1000
_PATIENCE_S = 0.3
_AT_ONCE = 3  # sweeps that are read at the same time


@dataclass(frozen=True, slots=True)
class ListedSweep:
    """A row of the list. `sweep` is None until it was read; `problem` says why it cannot be."""

    group: RunGroup
    params: tuple[str, ...]
    sweep: Sweep | None = None
    cost: float | None = None
    problem: str = ""

    @property
    def best(self) -> Trial | None:
        """The best trial, or None."""
        return self.sweep.trials[0] if self.sweep and self.sweep.measured else None


def _list(connection: Connection, most: int) -> tuple[list[RunGroup], bool]:
    """Return the newest sweeps, and True if there are more."""
    found = list(islice(list_sweeps(connection), most + 1))
    return found[:most], len(found) > most


async def _read_lines(ask: Ask, groups: list[RunGroup]) -> list[ListedSweep]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def read_one(group: RunGroup) -> ListedSweep:
        params = parameter_names(group.trials)
        async with places:
            try:
                sweep = await read_sweep(ask.source, group.group_id)
                cost = total_cost(await read_costs(ask.source, sweep))
                return ListedSweep(group, params, sweep, cost)
            except RunnerError as err:
                return ListedSweep(group, params, problem=err.what)

    tasks = [asyncio.create_task(read_one(group)) for group in groups]
    if not tasks:
        return []
    await asyncio.wait(tasks, timeout=_PATIENCE_S)
    _keep(tasks)
    return [
        task.result() if task.done() else ListedSweep(group, parameter_names(group.trials))
        for task, group in zip(tasks, groups, strict=True)
    ]


_reading: set[asyncio.Task[ListedSweep]] = set()  # the loop itself keeps weak references only


def _keep(tasks: list[asyncio.Task[ListedSweep]]) -> None:
    for task in tasks:
        if not task.done():
            _reading.add(task)
            task.add_done_callback(_reading.discard)


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `sweeps.html`."""
    limit = ask.number("n", _ROWS, low=1, high=_MOST_ROWS)
    groups, has_more = await ask.source.read(
        ("sweeps", limit), lambda connection: _list(connection, limit), fresh_s=2.0
    )
    lines = await _read_lines(ask, groups)
    return {"title": "Sweeps", "lines": lines, "more": min(2 * limit, _MOST_ROWS) * has_more}


async def read_documents(ask: Ask) -> list[SweepRow]:
    """Return the sweeps, newest first."""
    limit = ask.number("n", _MOST_ROWS, low=1, high=_MOST_ROWS)
    groups, _ = await ask.source.read(
        ("sweeps", limit), lambda connection: _list(connection, limit), fresh_s=2.0
    )
    return [sweep_line(group) for group in groups]


ENDPOINTS = (
    Endpoint(
        "/sweeps",
        "List the sweeps, newest first.",
        list[SweepRow],
        read_documents,
        (("n", "maximum number of sweeps"),),
        "runner sweep ls",
    ),
)
PAGE = WebPage("/sweeps", "sweeps", read, label="Sweeps")
