"""The list of sweeps: their states, the best trial, and what they have cost so far.

A sweep is read as on its own page, so that opening it does not read it again. The list does not
wait for large ones: an update adds them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.sweeps.experiments import iterate_sweeps, list_sweeps
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
    """A row of the list. `sweep` is None until it was read; `problem` says why it cannot be.

    `group` is None if the document of the sweep cannot be read.
    """

    group_id: str
    group: RunGroup | None = None
    params: tuple[str, ...] = ()
    sweep: Sweep | None = None
    cost: float | None = None
    problem: str = ""

    @property
    def best(self) -> Trial | None:
        """The best trial, or None."""
        return self.sweep.trials[0] if self.sweep and self.sweep.measured else None


Found = tuple[str, RunGroup | RunnerError]


def _list(connection: Connection, most: int) -> tuple[list[Found], bool]:
    """Return the newest sweeps, and True if there are more."""
    found = list(islice(iterate_sweeps(connection), most + 1))
    return found[:most], len(found) > most


def _unread(group_id: str, found: RunGroup | RunnerError) -> ListedSweep:
    if isinstance(found, RunnerError):
        problem = f"{found.what}: {found.why}" if found.why else found.what
        return ListedSweep(group_id, problem=problem)
    return ListedSweep(group_id, found, parameter_names(found.trials))


async def _read_lines(ask: Ask, listed: list[Found]) -> list[ListedSweep]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def read_one(group_id: str, found: RunGroup | RunnerError) -> ListedSweep:
        line = _unread(group_id, found)
        if line.group is None:
            return line
        async with places:
            try:
                sweep = await read_sweep(ask.source, group_id)
                cost = total_cost(await read_costs(ask.source, sweep))
                return replace(line, sweep=sweep, cost=cost)
            except RunnerError as err:
                return replace(line, problem=err.what)

    tasks = [asyncio.create_task(read_one(*each)) for each in listed]
    if not tasks:
        return []
    await asyncio.wait(tasks, timeout=_PATIENCE_S)
    _keep(tasks)
    return [
        task.result() if task.done() else _unread(*each)
        for task, each in zip(tasks, listed, strict=True)
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
    listed, has_more = await ask.source.read(
        ("sweeps", limit), lambda connection: _list(connection, limit), fresh_s=2.0
    )
    lines = await _read_lines(ask, listed)
    return {"title": "Sweeps", "lines": lines, "more": min(2 * limit, _MOST_ROWS) * has_more}


async def read_documents(ask: Ask) -> list[SweepRow]:
    """Return the sweeps, newest first."""
    limit = ask.number("n", _MOST_ROWS, low=1, high=_MOST_ROWS)

    def load(connection: Connection) -> list[RunGroup]:
        return list(islice(list_sweeps(connection), limit))

    groups = await ask.source.read(("api sweeps", limit), load, fresh_s=2.0)
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
