"""What a script that succeeded left on the node, until its outputs are exported.

An attempt whose export fails for storage's sake, or whose agent is killed during it, has done all
of the training and lost nothing of it: where Batch runs the task again in the same folder, the next
attempt only exports. A node that was started anew may have lost what no disk had yet: there, the
script runs again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.node.documents import parse_json
from runner.node.lines import LineQueue
from runner.node.metrics import (
    MAX_JSON_BYTES,
    MAX_NAMES,
    MetricLog,
    MetricValue,
    json_value,
    parse_metrics,
)
from runner.node.patterns import MetricPatterns
from runner.node.run_spec import RunSpec

logger = logging.getLogger(__name__)

NAME = "finished.json"  # in the task's working directory
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_METRICS = Path("logs", "metrics.jsonl")
_STDOUT = Path("logs", "stdout.txt")
TAIL_BYTES = 1024 * 1024


class Finished:
    """Of one task's folder; `attempt` is whose outputs lie there, None where the script must run.

    To be made before the attempt clears its folders.
    """

    def __init__(self, work_dir: Path, spec: RunSpec) -> None:
        self._path = work_dir / NAME
        self._spec = spec
        self._log: MetricLog | None = None
        self._values: dict[str, MetricValue] = {}
        self.attempt: int | None = None
        self.environment = Path()
        try:
            self._read(work_dir)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.forget()

    def _read(self, work_dir: Path) -> None:
        raw: dict[str, Any] = parse_json(self._path.read_bytes())
        if raw["of"] != self._of() or not (work_dir / "output").is_dir():
            raise ValueError("of another run, or of before the node was started")
        self.environment, self._values = Path(raw["environment"]), dict(raw["metrics"])
        # What had not been read yet when the script ended.
        self._values |= _last_printed(work_dir / _STDOUT, self._spec.metric_patterns)
        self._values |= _last_values(work_dir / _METRICS)
        self.attempt = int(raw["attempt"])

    def _of(self) -> list[str]:
        boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""
        return [self._spec.run_id, self._spec.code_sha256, boot]

    def use(self, log: MetricLog) -> None:
        """Whose metrics are meant; what earlier attempts measured becomes its last values."""
        self._log = log
        if self.attempt is not None:
            log.recall(self._values)

    def save(self, attempt: int, environment: Path) -> None:
        """The script succeeded. Costs nothing where it cannot be written."""
        if self._spec.nodes > 1:
            return  # the others' ends count too
        try:
            document = {
                "of": self._of(),
                "attempt": attempt,
                "environment": str(environment),
                "metrics": self._log.last() if self._log else {},
            }
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(document), encoding="utf-8")
            os.replace(part, self._path)  # noqa: PTH105 - says what it is
        except OSError as err:
            logger.warning("an attempt after this one would run the script again: %s", err)

    def forget(self) -> None:
        """The next attempt runs the script."""
        self.attempt = None
        try:
            self._path.unlink(missing_ok=True)
        except OSError as err:
            logger.warning("%s cannot be removed: %s", self._path, err)


def _last_printed(path: Path, patterns: Mapping[str, str]) -> dict[str, MetricValue]:
    """What the recipe's expressions find at the end of stdout."""
    if not patterns or not path.is_file():
        return {}
    queue = LineQueue()
    queue.close()  # nobody reads it
    log = MetricLog(0, queue)
    search = MetricPatterns(patterns, log)
    with path.open("rb") as text:
        text.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        search.feed(text.read(TAIL_BYTES))
    search.finish()
    return log.last()


def _last_values(path: Path) -> dict[str, MetricValue]:
    """What the script's file holds."""
    values: dict[str, MetricValue] = {}
    if not path.is_file():
        return values
    with path.open("rb") as lines:
        while line := lines.readline(MAX_JSON_BYTES):
            try:
                found = parse_metrics(parse_json(line))
            except (ValueError, TypeError, OverflowError):
                continue
            for name, value, _ in found:
                if name in values or len(values) < MAX_NAMES:
                    values[name] = json_value(value)
    return values
