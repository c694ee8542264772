"""What of job schedules and of the usage of pools lies on disk, in the store's database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from batch_emulator.account import Journal
from batch_emulator.model import UsageKey
from batch_emulator.records import dump, schedule_record
from batch_emulator.values import time_of, time_text

SCHEMA = """
CREATE TABLE IF NOT EXISTS schedules (
  schedule TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
  pool TEXT, vm_size TEXT, start TEXT, node_s REAL NOT NULL,
  PRIMARY KEY (pool, vm_size, start)) WITHOUT ROWID;
"""


def write(database: sqlite3.Connection, journal: Journal) -> None:
    """Write what changed."""
    for key, schedule in journal.schedules.items():
        if schedule is None:
            database.execute("DELETE FROM schedules WHERE schedule=?", (key,))
        else:
            record = dump(schedule_record(schedule))
            database.execute("REPLACE INTO schedules VALUES (?,?)", (key, record))
    for (pool_id, vm_size, start), node_s in journal.usage.items():
        key = (pool_id, vm_size, time_text(start))
        if node_s is None:
            database.execute("DELETE FROM usage WHERE pool=? AND vm_size=? AND start=?", key)
        else:
            database.execute("REPLACE INTO usage VALUES (?,?,?,?)", (*key, node_s))


def usage(database: sqlite3.Connection) -> Iterator[tuple[UsageKey, float]]:
    """Node-seconds by pool, VM size and start of the interval."""
    for pool_id, vm_size, start, node_s in database.execute("SELECT * FROM usage"):
        yield (pool_id, vm_size, time_of(start)), node_s
