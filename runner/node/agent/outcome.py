"""Write the outcome of a run whose attempt ended, or whose predecessors did not succeed.

Batch starts the task when its predecessors have ended, even if they failed, because the client sets
`satisfy` for every exit. Otherwise, a run after a failed one would wait for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from runner.node.agent.attempt import Attempt
from runner.node.agent.attempt_checkpoints import AttemptCheckpoints
from runner.node.agent.records import (
    commit_attempt,
    commit_result,
    failures_before,
    recorded_exit_code,
    write_end,
)
from runner.node.context import FAILED_EXIT_CODE, TERMINATED_EXIT_CODE, AgentContext
from runner.node.failures import COMMAND_STAGE, StageFailedError
from runner.node.script.streams import EventLog, Streams
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.checkpoints import ResumeFailure
from runner.protocol.encoding import now_text, parse_json
from runner.protocol.metrics import ExpectedRange, range_problems
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptEnd, LeftOut, OutputFile, ResultStatus, RunResult

BLOCKED_CODE = "Blocked"


def blocked_by(runs: ContainerClient, run_body: bytes) -> str | None:
    """Return why the run of this run.json cannot start, or None if it can."""
    for run_id in _parse_predecessors(run_body):
        status = _read_status(runs, run_id)
        if status != "succeeded":
            return f"blocked by {run_id}, which {_STATUS_TEXTS.get(status, 'left no result')}"
    return None


def commit_blocked(runs: ContainerClient, run_id: str, message: str) -> bool:
    """Write the outcome of a run with a failed predecessor. Return False if an outcome existed."""
    return commit_unstarted(runs, run_id, "cancelled", BLOCKED_CODE, message)


def commit_unstarted(
    runs: ContainerClient, run_id: str, status: ResultStatus, code: str, message: str
) -> bool:
    """Write the outcome of a run that never started. Return False if an outcome existed."""
    result = RunResult(
        status=status,
        attempt=0,
        evicted=0,
        exit_code=None,
        step=None,
        code=code,
        message=message,
        started=None,
        ended=datetime.now(timezone.utc),  # noqa: UP017 - the agent runs on 3.10
        stages_s={},
        metrics={},
        outputs=(),
    )
    return commit_result(runs, RunPaths(run_id), result)


_UNREADABLE = "unreadable"
_STATUS_TEXTS = {
    "failed": "failed",
    "cancelled": "was cancelled",
    _UNREADABLE: "left a result that cannot be read",
}


def _parse_predecessors(run_body: bytes) -> list[str]:
    try:
        raw: Any = parse_json(run_body)
        return [str(run_id) for run_id in raw.get("after") or ()]
    except (ValueError, AttributeError, TypeError):
        return []  # `parse_run_spec` reports the damage


def _read_status(runs: ContainerClient, run_id: str) -> str:
    """Return the status of an ended run, or an empty string if it has no result."""
    body = runs.get(RunPaths(run_id).result)
    if body is None:
        return ""
    try:
        return str(parse_json(body)["status"])
    except (ValueError, KeyError, TypeError):
        return _UNREADABLE


logger = logging.getLogger(__name__)

FINAL_FLUSH_S = 1.0  # time limit for the logs of a task that Batch ends
# A flush that takes longer is listed as the stage `logs`: gigabytes of logs may take longer to
# upload than the training.
LONG_FLUSH_S = 1.0


class AttemptOutcome:
    """The outcome of an attempt: one method for each way to end, most return the exit code."""

    def __init__(
        self,
        agent: AgentContext,
        number: int,
        started: str,
        streams: Streams | None = None,
        events: EventLog | None = None,
        checkpoints: AttemptCheckpoints | None = None,
    ) -> None:
        self._agent = agent
        self._number = number
        self._started = started
        self._streams = streams
        self._events = events
        self._checkpoints = checkpoints

    def succeeded(
        self, attempt: Attempt, outputs: list[OutputFile], expect: Sequence[ExpectedRange] = ()
    ) -> int:
        """Commit the outcome with the exported files. Return the exit code.

        A trial fails if it reported no value of the metric that its sweep needs.
        """
        self._flush()
        trial = attempt.trial
        if trial is not None and (missing := trial.missing_metric()) is not None:
            return self.failed(missing, 0, attempt)
        failure = None if attempt.stopped_early else self._out_of_range(expect)
        self._end("failed" if failure else "succeeded", 0, "metrics" if failure else None)
        try:
            outputs = attempt.outputs.restore(outputs)
        except StageFailedError as err:
            return self._commit([], err)
        except StorageRequestError as err:
            logger.warning("the exported outputs could not be checked: %s", err)
        attempt.temp.remove()
        if trial is not None:
            trial.finish("failed" if failure else "succeeded", trial.stopped or "")
        left_out = attempt.outputs.left_out
        return self._commit(outputs, failure, left_out, early=attempt.stopped_early)

    def _out_of_range(self, expect: Sequence[ExpectedRange]) -> StageFailedError | None:
        """Return the failure of a run with a metric outside of its range, or None.

        `retries` do not apply, because another attempt would measure the same.
        """
        if self._streams is None:
            return None
        last = {name: float(value) for name, value in self._streams.metrics.last().items()}
        problems = range_problems(expect, last, fails=True)
        if not problems:
            return None
        logger.error("outside the expected range: %s", "; ".join(problems))
        return StageFailedError("metrics", "MetricOutOfRange", "; ".join(problems))

    def failed(
        self, failure: StageFailedError, retries: int, attempt: Attempt | None = None
    ) -> int:
        """Commit the failure with the files of the script, unless Batch will retry the task.

        Returns:
            The exit code.
        """
        failure.message = self._agent.redactor.text(failure.message)
        if attempt is not None:
            attempt.outputs.collect(self._left_s())  # now, because it writes events
        self._flush()
        agent = self._agent
        earlier = failures_before(agent.runs, agent.blobs, self._number) if retries else 0
        self._end("failed", failure.exit_code, failure.step)
        if earlier < retries:
            logger.info("failure %d of %d allowed: Batch tries again", earlier + 1, retries)
            if attempt is not None and failure.code != "StorageFailed":
                attempt.temp.remove()
            return failure.exit_code or FAILED_EXIT_CODE
        if attempt is not None and attempt.trial is not None:
            attempt.trial.finish("failed", failure.message)
        if attempt is None or failure.code == "StorageFailed":
            return self._commit([], failure)
        outputs = attempt.outputs.export_partial(self._left_s, last=True)
        attempt.temp.remove()
        return self._commit(outputs, failure, attempt.outputs.left_out)

    def find_load_failure(
        self, failure: StageFailedError, attempt: Attempt
    ) -> ResumeFailure | None:
        """Return the failure of the script to load its checkpoint, or None for another failure.

        Then another attempt follows here, in addition to the retries of the run.
        """
        if failure.step != COMMAND_STAGE or self._agent.termination.requested:
            return None
        if attempt.checkpoints.restored is None or self._streams is None:
            return None
        try:
            self._streams.finish_script()  # the last metrics too
            if self._streams.metrics.last():
                return None
            return attempt.find_load_failure(failure)
        except Exception as err:  # noqa: BLE001  the attempt then fails as any other
            logger.warning("why the script failed was not examined: %s", err)
            return None

    def could_not_load(
        self, failure: StageFailedError, load: ResumeFailure, attempt: Attempt
    ) -> None:
        """Record that the attempt could not load its checkpoint, before the next one starts."""
        self._flush()
        self._end("failed", failure.exit_code, failure.step, load=load)
        attempt.temp.remove()

    def is_final(self, retries: int) -> bool:
        """Return True if a failure of this attempt ends the run, or if this is unknown."""
        runs, blobs = self._agent.runs, self._agent.blobs
        try:
            return not retries or failures_before(runs, blobs, self._number) >= retries
        except StorageRequestError:
            return True

    def terminated(self, step: str, attempt: Attempt) -> int:
        """Record a termination: the run continues elsewhere, or the client decided its outcome.

        Export the files of the script and list them in the attempt's `outputs.json`. The next
        attempt adds them to its own; of a cancelled run, they are all that is kept.

        Returns:
            The exit code.
        """
        logger.info("terminated by Batch during %s", step)
        self._end("terminated", None, step)
        self._flush(FINAL_FLUSH_S)
        attempt.outputs.export_partial(self._left_s, last=False)
        attempt.temp.remove()
        return TERMINATED_EXIT_CODE

    def lost(self, err: StageFailedError) -> None:
        """Record that another node was lost. Call `end_lost` or `failed` afterwards."""
        message = self._agent.redactor.text(err.message)
        logger.error("%s", message)
        self._agent.losses.append(self._number)
        self._end("lost", None, err.step, message=message)

    def end_lost(self, attempt: Attempt) -> int:
        """End an attempt that lost a node and whose run continues. Return the exit code."""
        self._flush(FINAL_FLUSH_S)
        attempt.temp.remove()
        return TERMINATED_EXIT_CODE

    def await_writers(self) -> None:
        """Wait until this attempt writes no more, because the next one appends to the same logs."""
        if self._streams is not None:
            self._streams.await_end()

    def _left_s(self) -> float | None:
        """Return the seconds until Batch kills the agent or evicts the node; None if unknown."""
        notice = self._agent.notices.notice if self._agent.notices else None
        times = (self._agent.retry_budget.left_s, notice.left_s if notice else None)
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _flush(self, timeout_s: float | None = None) -> None:
        if self._streams is None:
            return
        began = time.monotonic()
        for finish in (self._streams.finish_script, self._streams.finish_events):
            try:
                finish(timeout_s)
            except Exception as err:  # noqa: BLE001
                # An incomplete log must not prevent the outcome.
                logger.warning("some records were not written: %s", err)
        took_s = time.monotonic() - began
        if self._events and took_s > LONG_FLUSH_S:
            self._events.stages_s["logs"] = round(took_s, 3)

    def _end(
        self,
        why: str,
        exit_code: int | None,
        step: str | None,
        message: str | None = None,
        load: ResumeFailure | None = None,
    ) -> None:
        agent = self._agent
        if self._streams is not None:
            self._streams.signs.stop()
        try:
            end = AttemptEnd(
                attempt=self._number,
                ended=now_text(),
                why=why,
                exit_code=exit_code,
                step=step,
                message=message,
                checkpoint=self._checkpoint_summary(),
                node_ends=self._node_ends(),
                resume_failed=load,
            )
            name = agent.blobs.attempt_end(self._number)
            agent.own[name] = write_end(agent.runs, agent.blobs, end)
        except StorageRequestError as err:
            # A missing end.json must not prevent the outcome of the run.
            logger.warning("could not record why the attempt ended: %s", err)

    def _node_ends(self) -> str:
        """Return when this node will be evicted, or an empty string.

        A run over several nodes has none, because its notices may be about another node.
        """
        notice = self._agent.notices.notice if self._agent.notices else None
        if notice is None or self._agent.nodes_token:
            return ""
        moment = datetime.now(timezone.utc) + timedelta(seconds=notice.left_s)  # noqa: UP017
        return moment.isoformat(timespec="milliseconds")

    def _checkpoint_summary(self) -> dict[str, Any] | None:
        return self._checkpoints.summary() if self._checkpoints else None

    def _commit(
        self,
        outputs: list[OutputFile],
        failure: StageFailedError | None,
        left_out: Sequence[LeftOut] = (),
        early: str | None = None,
    ) -> int:
        agent = self._agent
        written = self._events.content if self._events else None
        if written is not None:
            agent.own[agent.blobs.attempt_events(self._number)] = written
        first = commit_attempt(
            agent.runs,
            agent.blobs,
            attempt=self._number,
            started=self._started,
            stages_s=self._events.stages_s if self._events else {},
            metrics=self._streams.metrics.last() if self._streams else {},
            outputs=outputs,
            failure=failure,
            checkpoint=self._checkpoint_summary(),
            left_out=left_out,
            early=early,
            own=agent.own,
        )
        if not first:
            logger.info("the run's outcome was decided before this attempt ended")
            recorded = recorded_exit_code(agent.runs, agent.blobs)
            return FAILED_EXIT_CODE if recorded is None else recorded
        if failure is None:
            logger.info("succeeded, %d files exported", len(outputs))
            return 0
        return failure.exit_code or FAILED_EXIT_CODE
