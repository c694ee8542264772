"""Documents of finished runs, kept on this machine so that a list costs no request for them.

The run format lets them be kept: `run.json` and `result.json` are written once and never change.
Which runs there are is always asked of blob, and deleting this file changes nothing but the time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.core.home import HomePaths
from runner.protocol.errors import RunnerError
from runner.protocol.results import RunRecord, RunResult, parse_result, parse_run

# A blob service that is killed can lose what it was given last (Azurite writes every few seconds).
_SETTLED = timedelta(minutes=2)

Finished = tuple[RunRecord, RunResult]


class RunCache:
    """Finished runs of one storage account: a line each, appended, in a file of the owner."""

    def __init__(self, home: Path, connection: Connection) -> None:
        outputs = connection.outputs
        account = f"{outputs.blob_endpoint}/{outputs.container_runs}"
        name = hashlib.sha256(account.encode()).hexdigest()[:16]
        self._path = HomePaths(home).history / f"{name}.tsv"
        self._lines = self._load()

    def get(self, run_id: str) -> Finished | None:
        """Both documents, or None where they are not kept, or damaged."""
        line = self._lines.get(run_id)
        if line is None:
            return None
        run, _, result = line.partition("\t")
        try:
            return parse_run(run.encode(), run_id), parse_result(result.encode(), run_id)
        except RunnerError:
            return None

    def add(self, finished: Iterable[Finished], now: datetime | None = None) -> None:
        """Keep those whose outcome is settled; a disk that is full or read-only is no error."""
        before = (now or datetime.now(UTC)) - _SETTLED
        lines = [
            f"{record.run_id}\t{json.dumps(record.raw)}\t{json.dumps(result.raw)}\n"
            for record, result in finished
            if result.ended is not None and _aware(result.ended) < before
        ]
        if not lines:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # A line cut off by a crash must not swallow the next one, hence the first newline.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write("\n" + "".join(lines))
        except OSError:
            return

    def prune(self, run_ids: Iterable[str]) -> None:
        """Start anew once most of what is kept is of runs that are gone."""
        there = self._lines.keys() & set(run_ids)
        if len(self._lines) > 2 * len(there):
            self._lines = {run_id: self._lines[run_id] for run_id in there}
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                return

    def _load(self) -> dict[str, str]:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return {}
        pairs = (line.partition("\t") for line in text.split("\n") if line)
        return {run_id: rest for run_id, _, rest in pairs}


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
