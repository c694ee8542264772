"""`groups/<id>.json`: which runs one `runner submit` made, and which comes after which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runner.core.dag import CyclicError, levels
from runner.core.errors import ExitCode, RunnerError
from runner.core.run_record import FORMAT

FOLDER = "groups/"
SUBMITTING = "submitting/"  # notes of submissions whose tasks are not all there yet


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one Batch job. `runs` maps tasks to run ids, `after` tasks to those before them."""

    group_id: str
    name: str
    created: datetime
    job_id: str
    pool: str
    runs: Mapping[str, str]
    after: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format": FORMAT,
            "group_id": self.group_id,
            "name": self.name,
            "created": self.created.isoformat(),
            "job_id": self.job_id,
            "pool": self.pool,
            "tasks": {
                name: {"run_id": run_id, "after": list(self.after[name])}
                for name, run_id in self.runs.items()
            },
        }


def group_blob(group_id: str) -> str:
    """Where the document lies in the `runs` container."""
    return f"{FOLDER}{group_id}.json"


def parse_group(content: bytes, group_id: str) -> Group:
    """Read the document. Raises RunnerError for a newer one, or none at all."""
    try:
        raw: dict[str, Any] = json.loads(content)
        if int(raw["format"]) > FORMAT:
            raise ValueError(f"it has format {raw['format']}, this runner reads {FORMAT}")
        tasks: dict[str, Any] = raw["tasks"]
        after = {
            name: tuple(str(before) for before in task["after"]) for name, task in tasks.items()
        }
        levels(after)  # or it could neither be drawn nor ended in its order
        return Group(
            group_id=raw["group_id"],
            name=raw["name"],
            created=datetime.fromisoformat(raw["created"]),
            job_id=raw["job_id"],
            pool=raw["pool"],
            runs={name: str(task["run_id"]) for name, task in tasks.items()},
            after=after,
        )
    except (
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        AttributeError,
        RecursionError,
        CyclicError,
    ) as err:
        raise RunnerError(
            "R-GROUP-BROKEN",
            f"group {group_id} cannot be read",
            why=f"{type(err).__name__}: {err}",
            fix="its runs are there: runner ps",
            exit_code=ExitCode.RUN_FAILED,
        ) from err
