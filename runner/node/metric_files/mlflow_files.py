"""Read metrics that MLflow stores: files of its file store, or its SQLite database.

The file store has a file for each metric, with lines `timestamp value step`
(mlflow/store/tracking/file_store.py); the database has a table `metrics`
(mlflow/store/tracking/dbmodels/models.py, 2026-11-29).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from runner.node.metric_files.reading import FileReader, FoundValue, GrowingText

DATABASE_HEAD = b"SQLite format 3\0"
_FIELDS_OF_LINE = (2, 3)  # old versions wrote no step
_WAIT_S = 0.2  # for a lock of the script
_MAX_ROWS = 20_000  # of one query


class MlflowMetric(FileReader):
    """Reads the file of one metric, which is below the folder `metrics` of an MLflow run."""

    def __init__(self, path: Path, name: str) -> None:
        self._lines = GrowingText(path)
        self._name = name

    def read(self) -> Iterator[FoundValue]:
        """Yield the values of new lines. Raise ValueError for a line of another form."""
        while True:
            _, lines = self._lines.read_lines()
            if not lines:
                return
            for line in lines:
                fields = line.split()
                if len(fields) not in _FIELDS_OF_LINE:
                    raise ValueError("a line has no time, value and step")
                step = int(fields[2]) if len(fields) > 2 else None
                yield FoundValue(self._name, float(fields[1]), step)


class MlflowDatabase(FileReader):
    """Reads the table of metrics of a database while the script writes to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last_row = 0
        self._runs: dict[str, int] = {}  # the number of each run of MLflow

    def read(self) -> Iterator[FoundValue]:
        """Yield the values of new rows. Raise OSError if the database cannot be read now."""
        import sqlite3  # noqa: PLC0415  few scripts need it

        address = f"{self._path.resolve().as_uri()}?mode=ro"
        while True:
            try:
                with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S)) as database:
                    rows = database.execute(
                        "SELECT rowid, key, value, step, is_nan, run_uuid FROM metrics"
                        " WHERE rowid > ? ORDER BY rowid LIMIT ?",
                        (self._last_row, _MAX_ROWS),
                    ).fetchall()
            except sqlite3.Error as err:
                raise OSError(f"{self._path}: {err}") from err
            for row, key, value, step, is_nan, run in rows:
                self._last_row = row
                number = self._runs.setdefault(str(run), len(self._runs) + 1)
                name = str(key) if number == 1 else f"run-{number}/{key}"
                yield FoundValue(name, float("nan") if is_nan else float(value), int(step))
            if len(rows) < _MAX_ROWS:
                return


def is_mlflow_database(path: Path) -> bool:
    """Return True for a database with the tables of MLflow. Raise OSError if it is not readable."""
    import sqlite3  # noqa: PLC0415  few scripts need it

    address = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S)) as database:
            columns = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
    except sqlite3.Error as err:
        raise OSError(f"{path}: {err}") from err
    return {"key", "value", "step", "is_nan", "run_uuid"} <= columns
