"""One attempt on a node that is not the primary: the same stages, and the same script.

Whatever goes wrong is told to the primary, which has the run's outcome to write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from runner.node.attempt import Attempt, AttemptDirs, make_dirs
from runner.node.attempt_checkpoints import AttemptCheckpoints
from runner.node.distributed import node_environment, parse_company
from runner.node.events import EventLog
from runner.node.export import export_outputs
from runner.node.failures import (
    EvictedError,
    StageFailedError,
    TerminatedError,
    disk_full,
    is_disk_full,
)
from runner.node.hosts import Hosts, free_port
from runner.node.inputs import InputAccess
from runner.node.node_blobs import OUTPUTS, NodeBlobs, write_node_start
from runner.node.patience import Patience
from runner.node.primary import Primary
from runner.node.rank_outputs import CheckpointWatch, left_text, write_list
from runner.node.redaction import Redactor
from runner.node.run_spec import ResumeFrom, RunSpec, RunSpecError, parse_run_spec
from runner.node.secrets import Secrets
from runner.node.settings import NodeSettings
from runner.node.streams import Streams
from runner.node.termination import Termination
from runner.node.transport import StorageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Means:
    """What a worker needs of its task."""

    node: NodeSettings
    hosts: Hosts
    access: InputAccess
    secrets: Secrets
    patience: Patience
    termination: Termination
    redactor: Redactor


class Worker:
    """`run` ends when the script has, or when it is not to run any more."""

    def __init__(self, means: Means, primary: Primary, rank: int, number: int) -> None:
        self._means = means
        self._primary = primary
        self._rank = rank
        self._number = number
        self._blobs = NodeBlobs(means.node.run_id, rank)
        self._streams: Streams | None = None
        self._script: Streams | None = None  # until its logs are all written
        self._stage = "code"

    def run(self, inherited: Mapping[str, str]) -> None:
        """Prepare, wait for the others, run the script, and tell the primary."""
        logger.info("rank %d of %s, attempt %d", self._rank, self._blobs.run_id, self._number)
        try:
            dirs, events = self._stages(inherited)
            self._primary.tell("ended")
            self._flush_script()
            self._export(dirs, events)
        except StageFailedError as err:
            self._fail(err)
        except (TerminatedError, EvictedError):
            if not self._primary.is_over:  # Batch wants it: the node goes, or the task ends
                self._primary.tell("leaving")
        except Exception as err:  # noqa: BLE001 - whatever it is, the run must get an outcome
            self._fail(self._unexpected(err))
        finally:
            self._flush()
            self._primary.tell("flushed")

    def _stages(self, inherited: Mapping[str, str]) -> tuple[AttemptDirs, EventLog]:
        means = self._means
        spec = self._read_spec()
        write_node_start(means.access.runs, self._blobs, means.node, self._number)
        dirs = make_dirs(means.node.work_dir)
        self._streams = Streams(
            means.access.runs, self._blobs, self._number, dirs, {}, means.redactor
        )
        self._script = self._streams
        events = EventLog(self._streams.events, means.redactor, self._report_stage)
        checkpoints = self._checkpoints(spec, dirs, events)
        attempt = self._attempt(spec, dirs, events, checkpoints)
        secrets = means.secrets.resolve(means.patience)
        prepared = attempt.prepare(means.access)
        self._primary.tell("prepared", port=free_port(means.hosts.own))
        where = self._primary.next_order("restore")["where"]
        if where is not None:
            prepared |= checkpoints.follow(ResumeFrom(str(where[0]), int(where[1])))
        self._primary.tell("ready")
        company = parse_company(self._primary.next_order("go")["company"])
        others = node_environment(company, self._rank)
        with CheckpointWatch(dirs.checkpoints, lambda text: self._aside(events, text)):
            attempt.run(inherited, {**secrets, **prepared, **others})
        return dirs, events

    def _export(self, dirs: AttemptDirs, events: EventLog) -> None:
        """Where the primary says, once its own script has succeeded. Raises TerminatedError."""
        runs = self._means.access.runs
        try:
            order = self._primary.next_order("export")
        except TerminatedError:
            why = "the run has not succeeded, or had ended before this node"
            if text := left_text(dirs.output, "RUNNER_OUTPUT_DIR", why):
                events.aside("notice", "progress", text)
            raise
        with events.stage("export", "exporting the outputs") as report:
            check = self._means.termination.check
            outputs = export_outputs(runs, str(order["prefix"]), dirs.output, report, check)
            write_list(runs, self._blobs.attempt(self._number, OUTPUTS), outputs)
        self._primary.tell("exported")

    def _aside(self, events: EventLog, text: str) -> None:
        """What the run's reader shall see, too."""
        events.aside("notice", "progress", text)
        self._primary.tell("aside", text=text)

    def _read_spec(self) -> RunSpec:
        body = self._means.access.runs.get(self._blobs.run)
        try:
            spec = parse_run_spec(body or b"")
        except RunSpecError as err:
            raise StageFailedError("code", "RunSpecInvalid", str(err)) from err
        return replace(spec, timeout_s=None)  # the primary looks at the clock

    def _attempt(
        self, spec: RunSpec, dirs: AttemptDirs, events: EventLog, checkpoints: AttemptCheckpoints
    ) -> Attempt:
        return Attempt(
            self._means.node,
            spec,
            self._number,
            dirs,
            events=events,
            patience=self._means.patience,
            termination=self._means.termination,
            checkpoints=checkpoints,
        )

    def _checkpoints(
        self, spec: RunSpec, dirs: AttemptDirs, events: EventLog
    ) -> AttemptCheckpoints:
        """Commits nothing: that is the primary's."""
        return AttemptCheckpoints(
            self._means.access.runs,
            self._blobs,
            replace(spec, checkpoints=None, resume_from=None),
            self._number,
            folder=dirs.checkpoints,
            events=events,
            patience=self._means.patience,
            termination=self._means.termination,
            step=lambda: None,
        )

    def _report_stage(self, stage: str, text: str) -> None:
        self._stage = stage
        self._primary.tell("stage", text=text or stage)

    def _fail(self, err: StageFailedError) -> None:
        message = self._means.redactor.text(err.message)
        logger.error("failed in %s: %s: %s", err.step, err.code, message)
        self._primary.tell(
            "failed", step=err.step, code=err.code, message=message, exit_code=err.exit_code
        )

    def _unexpected(self, err: Exception) -> StageFailedError:
        if isinstance(err, OSError) and is_disk_full(err):
            return disk_full(self._stage, err)
        if isinstance(err, StorageError):
            return StageFailedError(self._stage, "StorageFailed", str(err))
        logger.error("the worker failed", exc_info=err)
        return StageFailedError(self._stage, "AgentFailed", f"{type(err).__name__}: {err}")

    def _flush_script(self) -> None:
        streams, self._script = self._script, None
        if streams is not None:
            _try(streams.finish_script)

    def _flush(self) -> None:
        self._flush_script()
        if self._streams is not None:
            _try(self._streams.finish_events)


def _try(finish: Callable[[], None]) -> None:
    try:
        finish()
    except (StorageError, OSError, ValueError) as err:
        logger.warning("not everything was written: %s", err)
