"""What the attempts of a run went on from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.azure.blobs import BlobContainer, in_parallel
from runner.core.run_paths import RunPaths
from runner.node.documents import parse_json


@dataclass(frozen=True, slots=True)
class Resumed:
    """A checkpoint that an attempt went on from; `run_id` may be another run's."""

    run_id: str
    checkpoint: int
    attempt: int
    step: int | None

    def text(self, run_id: str) -> str:
        """For the table of attempts of run `run_id`."""
        step = f", step {self.step}" if self.step is not None else ""
        of = f"attempt {self.attempt}" if self.run_id == run_id else self.run_id
        return f"checkpoint {self.checkpoint} of {of}{step}"


def load_resumes(container: BlobContainer, run_id: str) -> dict[int, Resumed]:
    """By attempt; those that began anew are missing."""
    prefix = RunPaths(run_id).attempts
    names = [blob.name for blob in container.list(prefix) if blob.name.endswith("/resume.json")]
    found: dict[int, Resumed] = {}
    for name, content in zip(names, in_parallel(container.read, names), strict=True):
        number = name.removeprefix(prefix).partition("/")[0]
        resumed = parse_resumed(content or b"")
        if resumed is not None and number.isdecimal():
            found[int(number)] = resumed
    return found


def parse_resumed(content: bytes) -> Resumed | None:
    """Read `attempts/<n>/resume.json`; None where it is no such document."""
    try:
        raw: dict[str, Any] = parse_json(content)
        step = raw.get("step")
        return Resumed(
            str(raw["run_id"]),
            int(raw["checkpoint"]),
            int(raw["attempt"]),
            None if step is None else int(step),
        )
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None
