"""Deleting the many tasks of a job a few at a time: one statement would hold up everybody else.

The row of the job goes first. From then on its tasks are nobody's: what a crash leaves of them
goes when the store is opened again.
"""

from __future__ import annotations

import sqlite3

AT_ONCE = 1000  # rows; 5 to 10 ms
_NOBODYS = """
WITH RECURSIVE owners(job) AS (
  SELECT min(job) FROM tasks
  UNION ALL SELECT (SELECT min(job) FROM tasks WHERE job > owners.job) FROM owners
  WHERE owners.job IS NOT NULL)
SELECT job FROM owners WHERE job IS NOT NULL AND job NOT IN (SELECT job FROM jobs)
"""


def step(database: sqlite3.Connection, job_key: str) -> bool:
    """Delete the job and up to AT_ONCE of its tasks; whether there are more."""
    database.execute("DELETE FROM jobs WHERE job=?", (job_key,))
    last = database.execute(
        "SELECT task FROM tasks WHERE job=? ORDER BY task LIMIT 1 OFFSET ?", (job_key, AT_ONCE)
    ).fetchone()
    if last is None:
        database.execute("DELETE FROM tasks WHERE job=?", (job_key,))
        return False
    database.execute("DELETE FROM tasks WHERE job=? AND task<?", (job_key, *last))
    return True


def finish(database: sqlite3.Connection) -> None:
    """Delete the tasks of jobs that are gone."""
    for (job_key,) in database.execute(_NOBODYS).fetchall():
        database.execute("DELETE FROM tasks WHERE job=?", (job_key,))
