"""Stage restore: the newest complete checkpoint, before the command starts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.checkpoint import Checkpoint
from runner.node.checkpoint_restore import DamagedError, Found, Restorer, find_checkpoints
from runner.node.events import EventLog, Report
from runner.node.failures import StageFailedError, disk_full, is_disk_full
from runner.node.patience import Patience
from runner.node.run_spec import ResumeFrom

logger = logging.getLogger(__name__)

STAGE = "restore"


@dataclass(frozen=True)
class Restored:
    """What an attempt goes on from; `run_id` is another run's where it resumes that one."""

    run_id: str
    checkpoint: Checkpoint
    skipped: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `attempts/<n>/resume.json`, end.json and result.json tell it."""
        return {
            "run_id": self.run_id,
            "checkpoint": self.checkpoint.number,
            "attempt": self.checkpoint.attempt,
            "step": self.checkpoint.step,
            "skipped": list(self.skipped),
        }


class Resume:
    """Restores for one attempt into `folder`; `local` may hold files from before."""

    def __init__(
        self,
        runs: Container,
        blobs: RunBlobs,
        *,
        folder: Path,
        local: Path,
        events: EventLog,
        patience: Patience,
        check: Callable[[], None],
    ) -> None:
        self._runs = runs
        self._blobs = blobs
        self._folder = folder
        self._local = local
        self._events = events
        self._patience = patience
        self._check = check
        self._skipped: list[str] = []

    def restore(self, number: int, resume_from: ResumeFrom | None) -> Restored | None:
        """The run's own newest, else that of `resume_from`; None is a start from the beginning.

        Raises StageFailedError when there is nothing left of what the run shall resume.
        """
        own = find_checkpoints(self._runs, self._blobs.run_id)
        if not own.checkpoints and not own.problems and resume_from is None:
            return None
        with self._events.stage(STAGE, "looking for the newest complete checkpoint") as report:
            try:
                restored = self._newest(self._blobs.run_id, None, own, report)
                if restored is None and resume_from is not None:
                    restored = self._other(resume_from, report)
            except OSError as err:
                raise (disk_full(STAGE, err) if is_disk_full(err) else err) from err
            self._events.summarise(self._text(restored))
        if restored is not None:
            document = json.dumps(restored.to_json()).encode()
            self._runs.put(self._blobs.attempt(number, "resume.json"), document)
        return restored

    def follow(self, wanted: ResumeFrom) -> Restored:
        """Exactly what another node of the run goes on from. Raises StageFailedError."""
        with self._events.stage(STAGE, "fetching the primary's checkpoint") as report:
            try:
                restored = self._other(wanted, report)
            except OSError as err:
                raise (disk_full(STAGE, err) if is_disk_full(err) else err) from err
            self._events.summarise(self._text(restored))
        return restored

    def _other(self, wanted: ResumeFrom, report: Report) -> Restored:
        self._skipped.clear()
        found = find_checkpoints(self._runs, wanted.run_id, wanted.checkpoint)
        restored = self._newest(wanted.run_id, wanted.checkpoint, found, report)
        if restored is not None:
            return restored
        number = "" if wanted.checkpoint is None else f" {wanted.checkpoint}"
        why = f": {'; '.join(self._skipped)}" if self._skipped else ""
        raise StageFailedError(
            STAGE, "CheckpointMissing", f"{wanted.run_id} has no complete checkpoint{number}{why}"
        )

    def _newest(
        self, run_id: str, number: int | None, found: Found, report: Report
    ) -> Restored | None:
        """The first that is whole.

        An attempt that still runs makes newer ones and takes these away: look again after each.
        """
        tried: set[tuple[int, int]] = set()
        while True:
            problems = map(self._events.clean, found.problems)
            self._skipped += [why for why in problems if why not in self._skipped]
            left = [checkpoint for checkpoint in found.checkpoints if checkpoint.order not in tried]
            if not left:
                return None
            checkpoint = left[0]
            tried.add(checkpoint.order)
            restorer = Restorer(
                self._runs,
                self._folder,
                self._local,
                patience=self._patience,
                report=report,
                check=self._check,
            )
            try:
                restorer.restore(checkpoint, found.sizes)
                return Restored(run_id, checkpoint, tuple(self._skipped))
            except DamagedError as err:
                self._skipped.append(self._events.clean(f"{checkpoint.name}: {err}"))
                logger.warning("skipped %s", self._skipped[-1])
            found = find_checkpoints(self._runs, run_id, number)

    def _text(self, restored: Restored | None) -> str:
        skipped = f"; skipped {', '.join(self._skipped)}" if self._skipped else ""
        if restored is None:
            return f"no complete checkpoint, starting over{skipped}"
        of = "" if restored.run_id == self._blobs.run_id else f" of run {restored.run_id}"
        return f"resumed from {restored.checkpoint.name}{of}{skipped}"
