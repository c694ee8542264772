"""The checkpoints of one attempt: the restore before the script, the commits during and after."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.checkpoint_store import CheckpointStore
from runner.node.checkpointing import Checkpointing
from runner.node.events import EventLog
from runner.node.patience import Patience
from runner.node.resume import Restored, Resume
from runner.node.run_spec import RunSpec
from runner.node.snapshot import Snapshots
from runner.node.termination import Termination

# Of the seconds after SIGTERM: for end.json and the last lines of the log.
RESERVED_S = 0.8


class AttemptCheckpoints:
    """Does nothing where the run has no checkpoints, except to resume another run."""

    def __init__(  # noqa: PLR0913 - everything an attempt has
        self,
        runs: Container,
        blobs: RunBlobs,
        spec: RunSpec,
        number: int,
        *,
        folder: Path,
        events: EventLog,
        patience: Patience,
        termination: Termination,
        step: Callable[[], int | None],
    ) -> None:
        self._runs = runs
        self._blobs = blobs
        self._spec = spec
        self._number = number
        self._folder = folder
        self._store = folder.with_name("snapshots")
        self._events = events
        self._patience = patience
        self._termination = termination
        self._step = step
        self._thread: Checkpointing | None = None
        self._pid = 0
        self.restored: Restored | None = None

    def restore(self) -> dict[str, str]:
        """Bring back what to go on from; returns the variables this adds for the script."""
        spec = self._spec
        if spec.checkpoints is None and spec.resume_from is None:
            return {}
        resume = Resume(
            self._runs,
            self._blobs,
            folder=self._folder,
            local=self._store,
            events=self._events,
            patience=self._patience,
            check=self._termination.check,
        )
        self.restored = resume.restore(self._number, spec.resume_from)
        return {"RUNNER_RESUMED": "1"} if self.restored else {}

    def start(self, pid: int) -> None:
        """The script runs, as process `pid`: commit from now on."""
        rule = self._spec.checkpoints
        if rule is None:
            return
        self._pid = pid
        self._thread = Checkpointing(
            Snapshots(self._folder, self._store),
            CheckpointStore(self._runs, self._blobs, self._number, rule.keep),
            rule,
            self._events,
            step=self._step,
            script_runs=self._script_runs,
        )
        self._thread.start()

    def request(self) -> None:
        """Commit at once what there is."""
        if self._thread is not None:
            self._thread.request()

    def finish(self, exit_code: int | None) -> None:
        """The script ended, with None where it never ran to its end: commit, unless it succeeded.

        Within the time that is left when Batch wants the task to end.
        """
        if self._thread is None:
            return
        stopped = self._termination.requested
        left_s = self._patience.left_s
        timeout_s = None if left_s is None else max(left_s - RESERVED_S, 0.0)
        killed = exit_code is None or exit_code > 128
        self._thread.finish(final=stopped or exit_code != 0, distrust=killed, timeout_s=timeout_s)

    def summary(self) -> dict[str, Any] | None:
        """As end.json and result.json tell it; None where there is nothing to tell."""
        restored = self.restored.to_json() if self.restored else None
        if self._thread is None:
            return {"restored": restored} if restored else None
        return {"restored": restored, **self._thread.summary()}

    def _script_runs(self) -> bool:
        with suppress(ChildProcessError):
            options = os.WEXITED | os.WNOWAIT | os.WNOHANG
            return os.waitid(os.P_PID, self._pid, options) is None
        return False
