"""What a database of the state contains: that of a data dir, or of an exported account."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime

from batch_emulator.autoscale.samples import PERIOD
from batch_emulator.autoscale.values import Timestamp
from batch_emulator.domain.account import SampleRun
from batch_emulator.domain.model import Json, Pool, UsageKey
from batch_emulator.domain.values import time_of
from batch_emulator.storage.tasks import TaskTable

_NEWEST = (
    # `task_record` writes this property before any text of a client; JSON takes twice as long
    "SELECT max(substr(record, instr(record, '\"lastModified\":') + 16, 27)) FROM tasks",
    "SELECT max(json_extract(record, '$.modified')) FROM jobs",
    "SELECT max(json_extract(record, '$.state_time')) FROM nodes",
    "SELECT max(json_extract(record, '$.allocation_time')) FROM pools",
)


class StateReader:
    """Reads pools, nodes, jobs, schedules, samples and usage; `tasks` reads and writes tasks."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database
        self.tasks = TaskTable(database)

    def newest(self) -> datetime | None:
        """Return the last time at which anything changed, or None.

        The clock continues from there: if it ran faster than that of the machine, the machine's
        time would be earlier.
        """
        found = [self._db.execute(query).fetchone()[0] for query in _NEWEST]
        times = [time_of(text) for text in found if text is not None]
        sampled = self._db.execute(
            "SELECT max(first + (count - 1) * ?) FROM samples", (PERIOD,)
        ).fetchone()[0]
        if sampled is not None:
            times.append(Timestamp(sampled).time())
        return max(times, default=None)

    def records(self, table: str) -> Iterator[tuple[str, Json]]:
        """Yield key and record of each row; the key of a node is that of its pool."""
        query = {
            "pools": "SELECT pool, record FROM pools",
            "nodes": "SELECT pool, record FROM nodes",
            "jobs": "SELECT job, record FROM jobs",
            "schedules": "SELECT schedule, record FROM schedules",
        }[table]
        for key, record in self._db.execute(query):
            yield key, json.loads(record)

    def samples(self, pool: Pool) -> Iterator[SampleRun]:
        """Yield the samples of a pool, oldest first, without those of an earlier pool of the same
        id.
        """
        query = "SELECT first, count, record FROM samples WHERE pool=? AND first>=? ORDER BY first"
        since = Timestamp.of(pool.created).ticks
        for first, count, record in self._db.execute(query, (pool.key, since)):
            yield SampleRun(pool.key, first, count, json.loads(record))

    def usage(self) -> Iterator[tuple[UsageKey, float]]:
        """Yield node-seconds by pool, VM size and start of the interval."""
        for pool_id, vm_size, start, node_s in self._db.execute("SELECT * FROM usage"):
            yield (pool_id, vm_size, time_of(start)), node_s
