"""The records of a run in blob: claim and end of each attempt, and the one outcome of the run."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.node.agent.attempt import Attempt
from runner.node.context import FAILED_EXIT_CODE, TERMINATED_EXIT_CODE, TaskContext
from runner.node.failures import COMMAND_STAGE, StageFailedError
from runner.node.settings import NodeSettings
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.checkpoints import ResumeFailure
from runner.protocol.codec import DAMAGED, now_text, parse_json
from runner.protocol.metrics import range_problems
from runner.protocol.paths import RunPaths
from runner.protocol.results import (
    STOPPED_EARLY,
    AttemptEnd,
    AttemptStart,
    HoldEnd,
    LeftOut,
    NodeTimes,
    OutputFile,
    ResultStatus,
    RunResult,
    index_blobs,
    index_metadata,
)
from runner.protocol.run_spec import RunSpec, parse_run_spec
from runner.protocol.usage import MAX_ATTEMPTS, load_usage, usage_to_json

if TYPE_CHECKING:
    from runner.node.agent.hold import NodeHold

logger = logging.getLogger(__name__)

_UPTIME = Path("/proc/uptime")
_SSH_FOLDER = Path("/etc/ssh")
NO_LOGS: Mapping[str, int] = {"stdout": 0, "stderr": 0}  # the sizes of logs before the first agent
FINAL_FLUSH_S = 1.0  # time limit for the logs of a task that Batch ends
# A flush that takes longer is listed as the stage `logs`: gigabytes of logs may take longer to
# upload than the training.
LONG_FLUSH_S = 1.0


def describe_start(
    node: NodeSettings, number: int, log_offsets: Mapping[str, int], rank: int = 0
) -> AttemptStart:
    """Return the record of an attempt that starts now.

    Args:
        node: the node.
        number: the number of the attempt.
        log_offsets: the current size of each log in bytes, where the attempt's part begins.
        rank: the rank of this node in the run.
    """
    return AttemptStart(
        attempt=number,
        node=node.node,
        started=now_text(),
        stdout_offset=log_offsets["stdout"],
        stderr_offset=log_offsets["stderr"],
        pool=node.pool,
        work_dir=str(node.work_dir),
        dedicated=node.dedicated,
        host=node.host,
        rank=rank,
        evictions=node.evictions,
        node_times=find_node_times(node.root_dir),
        signs=True,
        host_keys=find_host_keys(),
    )


def find_host_keys(folder: Path = _SSH_FOLDER) -> tuple[str, ...]:
    """Return the public SSH host keys of this node, without their comments."""
    found: list[str] = []
    for path in sorted(folder.glob("ssh_host_*_key.pub")):
        with suppress(OSError, UnicodeDecodeError):
            found.append(" ".join(path.read_text(encoding="ascii").split()[:2]))
    return tuple(each for each in found if each)


def find_node_times(root: Path | None) -> NodeTimes:
    """Return when this node booted, was created and was ready; unknown times are empty.

    Args:
        root: `AZ_BATCH_NODE_ROOT_DIR`. Batch creates the folders in it when the node starts.
            Folders that are older than the boot came with the image, and are ignored.
    """
    if root is None:
        return NodeTimes()
    booted = None
    with suppress(OSError, ValueError, IndexError):
        booted = time.time() - float(_UPTIME.read_text(encoding="ascii").split()[0])
    times = [s for path in _list_entries(root) if (s := _modified_s(path)) and s >= (booted or 0)]
    created = min(times, default=None)
    startup = root / "startup"
    last = [s for name in ("stdout.txt", "stderr.txt", "wd") if (s := _modified_s(startup / name))]
    ready = max(last, default=None)
    return NodeTimes(*(_time_text(each) for each in (booted, created, ready)))


def _list_entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _modified_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _time_text(time_s: float | None) -> str:
    if time_s is None:
        return ""
    moment = datetime.fromtimestamp(time_s, timezone.utc)  # noqa: UP017 - the agent runs on 3.10
    return moment.isoformat(timespec="milliseconds")


def read_outcome(body: bytes) -> tuple[str, int | None]:
    """Return status and exit code of a result.json of any version; "" and None if it is damaged.

    A later version of the client may have decided the outcome.
    """
    try:
        result: dict[str, Any] = parse_json(body)
        code = result.get("exit_code")
        return str(result["status"]), code if isinstance(code, int) else None
    except DAMAGED:
        return "", None


class RunRecords:
    """The records of one run: claim an attempt, write its end, and commit `result.json` once.

    Documents that this agent wrote, and that no other program changes, are not read again.
    """

    def __init__(self, runs: ContainerClient, paths: RunPaths) -> None:
        self._runs = runs
        self.paths = paths
        self._own: dict[str, bytes] = {}
        self.spec: RunSpec | None = None  # once it was parsed
        self.losses = 0  # attempts in this task that lost another node
        self.has_lost_storage = False  # an attempt in this task failed because storage did
        self.hold: NodeHold | None = None  # an attempt in this task failed, and keeps its node

    def note_lost_storage(self) -> None:
        """Remember that an attempt of this process failed because storage did."""
        self.has_lost_storage = True

    def keep(self, name: str, content: bytes) -> None:
        """Use this content of a blob instead of reading it."""
        self._own[name] = content

    def read(self, name: str) -> bytes | None:
        """Return the content of a blob of the run, or None if it does not exist."""
        return self._own[name] if name in self._own else self._runs.get(name)

    def parse_run(self, body: bytes) -> RunSpec:
        """Return the run of a run.json, as `spec` does from now on. Raise RunSpecError."""
        self.spec = parse_run_spec(body)
        return self.spec

    def read_run(self) -> bytes | None:
        """Return run.json as it is now."""
        self._own.pop(self.paths.run, None)
        return self._runs.get(self.paths.run)

    def exit_code(self) -> int | None:
        """Return the exit code of a run that ended, 1 if its result is damaged, or None."""
        body = self._runs.get(self.paths.result)
        if body is None:
            return None
        status, code = read_outcome(body)
        if code is not None:
            return code
        return 0 if status == "succeeded" else FAILED_EXIT_CODE

    def find_log_offsets(self) -> dict[str, int]:
        """Return the size of each log in bytes, by stream.

        Afterwards, appends of earlier attempts that are still under way are rejected.
        """
        logs = {"stdout": self.paths.stdout, "stderr": self.paths.stderr}
        found = {name: self._runs.reject_pending_appends(blob) for name, blob in logs.items()}
        return {name: each.size_bytes if each else 0 for name, each in found.items()}

    def claim_attempt(self, node: NodeSettings, log_offsets: Mapping[str, int]) -> int:
        """Claim the next free attempt number and return it; numbers start from 1."""
        number = 1
        while True:
            start = describe_start(node, number, log_offsets)
            name, content = self.paths.attempt_start(number), json.dumps(start.to_json()).encode()
            if self._runs.create(name, content):
                self.keep(name, content)
                return number
            number = max([number, *self._taken_numbers()]) + 1

    def _taken_numbers(self) -> list[int]:
        folder = self.paths.attempts
        rests = (name[len(folder) :] for name in self._runs.list_names(folder))
        return [int(rest.split("/")[0]) for rest in rests if rest.split("/")[0].isdigit()]

    def last_claimed(self) -> int:
        """Return the number of the last attempt, or 0 if none started."""
        return max(self._taken_numbers(), default=0)

    def read_start(self, number: int) -> str:
        """Return when an attempt started, or an empty string if it is not known."""
        start = AttemptStart.load(self.read(self.paths.attempt_start(number)) or b"")
        return start.started if start is not None else ""

    def end_killed(self, number: int, message: str) -> None:
        """Write the end of an attempt whose agent was killed: the next attempt started then."""
        if self._read_end(number) is None:
            self.write_end(
                AttemptEnd(
                    attempt=number,
                    ended=self.read_start(number + 1),
                    why="failed",
                    step=COMMAND_STAGE,
                    message=message,
                )
            )

    def write_node_start(self, node: NodeSettings, number: int) -> None:
        """Write the start record of an attempt on the node of the rank of `paths`."""
        start = describe_start(node, number, self.find_log_offsets(), self.paths.rank)
        self._runs.put(self.paths.attempt_start(number), json.dumps(start.to_json()).encode())

    def write_end(self, end: AttemptEnd) -> None:
        """Write end.json of an attempt."""
        self.losses += end.why == "lost"
        name, content = self.paths.attempt_end(end.attempt), json.dumps(end.to_json()).encode()
        self._runs.put(name, content)
        self.keep(name, content)

    def failures_before(self, attempt: int) -> int:
        """Return how many earlier attempts failed.

        Lost and terminated ones do not count, nor those that only could not load their checkpoint.
        """
        ends = map(self._read_end, range(1, attempt))
        return sum(e is not None and e.why == "failed" and not e.resume_failed for e in ends)

    def _read_end(self, number: int) -> AttemptEnd | None:
        """Return end.json, or None if it is missing (the attempt was lost) or damaged."""
        return AttemptEnd.load(self._runs.get(self.paths.attempt_end(number)) or b"")

    def start_of(self, number: int) -> datetime | None:
        """Return when an attempt started, or None if this is unknown. Raise StorageRequestError."""
        start = AttemptStart.load(self.read(self.paths.attempt_start(number)) or b"")
        try:
            return datetime.fromisoformat(start.started) if start is not None else None
        except ValueError:
            return None

    def commit_attempt(
        self,
        result: RunResult,
        failure: StageFailedError | None = None,
        hold: NodeHold | None = None,
    ) -> bool:
        """Write the outcome of a run whose last attempt ended. Return False if an outcome existed.

        Args:
            result: the outcome if there is no failure, without the fields that are added here.
            failure: why the run failed, or None if it succeeded.
            hold: keeps the node of an attempt that failed; it starts with the outcome.
        """
        is_early = result.code is not None
        result = replace(
            result,
            evicted=self._count_evicted(result.attempt),
            ended=datetime.now(timezone.utc),  # noqa: UP017 - the agent runs on 3.10
            output=self.paths.output(result.attempt).removeprefix(self.paths.root),
            partial=(failure is not None or is_early) and bool(result.outputs),
        )
        if failure is not None:
            result = replace(
                result,
                status="failed",
                exit_code=failure.exit_code,
                step=failure.step,
                code=failure.code,
                message=failure.message,
                error=failure.error[1] or None,
                rank=failure.rank,
            )
        if hold is None:
            return self._commit(result)
        result = hold.start(result)
        if self._commit(result):
            self.hold = hold
            return True
        hold.clean_up()
        return False

    def end_hold(self, result: RunResult, why: str) -> None:
        """Record when a node was released that was kept, and count its time in the index."""
        end = HoldEnd(result.attempt, now_text(), why)
        name = self.paths.attempt_hold(result.attempt)
        try:
            self._runs.put(name, json.dumps(end.to_json()).encode())
        except StorageRequestError as err:
            logger.warning("the end of the hold is not recorded: %s", err)
            return
        self._write_index(result, result.to_json(self.paths.run_id))

    def commit_unstarted(self, status: ResultStatus, code: str, message: str) -> bool:
        """Write the outcome of a run that never started. Return False if an outcome existed."""
        result = RunResult(
            status=status,
            attempt=0,
            evicted=0,
            code=code,
            message=message,
            ended=datetime.now(timezone.utc),  # noqa: UP017 - the agent runs on 3.10
        )
        return self._commit(result)

    def _commit(self, result: RunResult) -> bool:
        """Write result.json and the run's index entry. Return False if an outcome existed."""
        document = result.to_json(self.paths.run_id)
        first = self._runs.create(self.paths.result, json.dumps(document, indent=2).encode())
        if first:
            self._write_index(result, document)
        return first

    def _count_evicted(self, attempt: int) -> int | None:
        """Return how many earlier attempts were lost with their node, or None if storage fails.

        Attempts that ended on request (a move to another pool, a pause) do not count.
        """
        if attempt == 1:
            return 0
        try:
            return len(self.find_evicted(attempt))
        except (StorageRequestError, *DAMAGED) as err:
            logger.warning("how earlier attempts ended is not known: %s", err)
            return None

    def find_evicted(self, attempt: int) -> list[int]:
        """Return the numbers of earlier attempts that were lost with their node.

        Raises:
            StorageRequestError: storage refused a request or did not answer.
            ValueError: run.json is damaged; or another of DAMAGED.
        """
        run = RunSpec.from_json(parse_json(self._runs.get(self.paths.run) or b""))
        moved = {stay.requeued for stay in run.moved_from}
        evicted: list[int] = []
        for number in sorted(set(range(1, attempt)) - moved):
            end = self._read_end(number)
            was_asked = end is not None and end.was_requeued and run.resources.nodes == 1
            if not was_asked and (end is None or end.why != "failed"):
                evicted.append(number)
        return evicted

    def _write_index(self, result: RunResult, document: Mapping[str, Any]) -> None:
        """Update the run's entry in the index. A failure is only logged."""
        try:
            run: dict[str, Any] = parse_json(self.read(self.paths.run) or b"{}")
            metadata = index_metadata(run, document, self._usage(result))
            for blob in index_blobs(self.paths.run_id):
                self._runs.put_metadata(blob, metadata)
        except (StorageRequestError, ValueError, AttributeError, TypeError) as err:
            logger.warning("the run's entry in the index could not be written: %s", err)

    def _usage(self, result: RunResult) -> dict[str, Any] | None:
        """Return the node time of the attempts for the index, or None if it cannot be read."""
        try:
            found = load_usage(
                self.read,
                self.paths.run_id,
                nodes=self.spec.resources.nodes if self.spec is not None else 1,
                status=result.status,
                ended=result.ended,
                attempts=result.attempt or MAX_ATTEMPTS,
                kept_until=result.kept_until,
            )
            return usage_to_json(found)
        except (StorageRequestError, *DAMAGED) as err:
            logger.warning("the usage of the attempts is not in the index: %s", err)
            return None


class AttemptOutcome:
    """The outcome of an attempt: one method for each way to end, most return the exit code.

    `attempt` is None if the task's folders could not be made, or run.json cannot be read.
    """

    def __init__(
        self,
        task: TaskContext,
        records: RunRecords,
        number: int,
        started: str,
        attempt: Attempt | None = None,
    ) -> None:
        self._task = task
        self._records = records
        self._number = number
        self._started = started
        self._attempt = attempt
        self._streams = attempt.streams if attempt is not None else None

    @property
    def attempt(self) -> Attempt:
        """The attempt. Without one, only `failed` can be called."""
        if self._attempt is None:
            raise RuntimeError("the attempt has no folders")
        return self._attempt

    def succeeded(self, outputs: list[OutputFile]) -> int:
        """Commit the outcome with the exported files. Return the exit code.

        A trial fails if it reported no value of the metric that its sweep needs.
        """
        self._flush()
        attempt = self.attempt
        trial = attempt.trial
        if trial is not None and (missing := trial.missing_metric()) is not None:
            return self.failed(missing, 0)
        failure = None if attempt.stopped_early else self._out_of_range()
        self._end("failed" if failure else "succeeded", 0, "metrics" if failure else None)
        try:
            outputs = attempt.outputs.restore(outputs)
        except StageFailedError as err:
            return self._commit([], err)
        except StorageRequestError as err:
            logger.warning("the exported outputs could not be checked: %s", err)
        hold = self._make_hold() if failure is not None else None
        self._clean_up(hold, attempt.temp.remove)
        if trial is not None:
            trial.finish("failed" if failure else "succeeded", trial.stopped or "")
        left_out = attempt.outputs.left_out
        return self._commit(outputs, failure, left_out, early=attempt.stopped_early, hold=hold)

    def _out_of_range(self) -> StageFailedError | None:
        """Return the failure of a run with a metric outside of its range, or None.

        `retries` do not apply, because another attempt would measure the same.
        """
        if self._streams is None:
            return None
        last = {name: float(value) for name, value in self._streams.metrics.last().items()}
        problems = range_problems(self.attempt.spec.expect, last, fails=True)
        if not problems:
            return None
        logger.error("outside the expected range: %s", "; ".join(problems))
        return StageFailedError("metrics", "MetricOutOfRange", "; ".join(problems))

    def failed(self, failure: StageFailedError, retries: int) -> int:
        """Commit the failure with the files of the script, unless Batch will retry the task.

        Returns:
            The exit code.
        """
        failure.redact(self._task.redactor.text)
        if failure.code == "StorageFailed":
            self._records.note_lost_storage()
        attempt = self._attempt
        if attempt is not None:
            attempt.outputs.collect(self._left_s())  # now, because it writes events
        self._flush()
        earlier = self._records.failures_before(self._number) if retries else 0
        self._end("failed", failure.exit_code, failure.step)
        if earlier < retries:
            logger.info("failure %d of %d allowed: Batch tries again", earlier + 1, retries)
            if attempt is not None and failure.code != "StorageFailed":
                attempt.temp.remove()
            return failure.exit_code or FAILED_EXIT_CODE
        if attempt is not None and attempt.trial is not None:
            attempt.trial.finish("failed", failure.error[1] or failure.message)
        hold = self._make_hold()
        if attempt is None or failure.code == "StorageFailed":
            return self._commit([], failure, hold=hold)
        outputs = attempt.outputs.export_partial(self._left_s, last=True)
        self._clean_up(hold, attempt.temp.remove)
        return self._commit(outputs, failure, attempt.outputs.left_out, hold=hold)

    def _make_hold(self) -> NodeHold | None:
        """Return the hold of the node for a run that failed, or None if the node is not kept."""
        spec, task = self._records.spec, self._task
        if spec is None or not spec.keep_node_s or task.termination.requested:
            return None
        if task.notices is not None and task.notices.notice is not None:
            return None  # the node is about to be evicted
        from runner.node.agent.hold import NodeHold  # noqa: PLC0415  few runs keep their node

        return NodeHold(spec.keep_node_s)

    def clean_up(self, cleanup: Callable[[], object]) -> None:
        """Remove something of an attempt that has ended, after the hold of its node."""
        self._clean_up(self._records.hold, cleanup)

    @staticmethod
    def _clean_up(hold: NodeHold | None, cleanup: Callable[[], object]) -> None:
        if hold is None:
            cleanup()
        else:
            hold.cleanups.append(cleanup)

    def find_load_failure(self, failure: StageFailedError) -> ResumeFailure | None:
        """Return the failure of the script to load its checkpoint, or None for another failure.

        Then another attempt follows here, in addition to the retries of the run.
        """
        if failure.step != COMMAND_STAGE or self._task.termination.requested:
            return None
        if self.attempt.checkpoints.restored is None or self._streams is None:
            return None
        try:
            self._streams.finish_script()  # the last metrics too
            if self._streams.metrics.last():
                return None
            return self.attempt.find_load_failure(failure)
        except Exception as err:  # noqa: BLE001  the attempt then fails as any other
            logger.warning("why the script failed was not examined: %s", err)
            return None

    def could_not_load(self, failure: StageFailedError, load: ResumeFailure) -> None:
        """Record that the attempt could not load its checkpoint, before the next one starts."""
        self._flush()
        self._end("failed", failure.exit_code, failure.step, load=load)
        self.attempt.temp.remove()

    def is_final(self, retries: int) -> bool:
        """Return True if a failure of this attempt ends the run, or if this is unknown."""
        try:
            return not retries or self._records.failures_before(self._number) >= retries
        except StorageRequestError:
            return True

    def terminated(self, step: str) -> int:
        """Record a termination: the run continues elsewhere, or the client decided its outcome.

        Export the files of the script and list them in the attempt's `outputs.json`. The next
        attempt adds them to its own; of a cancelled run, they are all that is kept.

        Returns:
            The exit code.
        """
        logger.info("terminated by Batch during %s", step)
        self._end("terminated", None, step)
        self._flush(FINAL_FLUSH_S)
        self.attempt.outputs.export_partial(self._left_s, last=False)
        self.attempt.temp.remove()
        return TERMINATED_EXIT_CODE

    def lost(self, err: StageFailedError) -> int:
        """Record that another node was lost. Call `end_lost` or `failed` afterwards.

        Returns:
            The number of attempts in this task that lost a node.
        """
        message = self._task.redactor.text(err.message)
        logger.error("%s", message)
        self._end("lost", None, err.step, message=message)
        return self._records.losses

    def end_lost(self) -> int:
        """End an attempt that lost a node and whose run continues. Return the exit code."""
        self._flush(FINAL_FLUSH_S)
        self.attempt.temp.remove()
        return TERMINATED_EXIT_CODE

    def await_writers(self) -> None:
        """Wait until this attempt writes no more, because the next one appends to the same logs."""
        if self._streams is not None:
            self._streams.await_end()
        if self.attempt.devices is not None:
            self.attempt.devices.await_end()

    def _left_s(self) -> float | None:
        """Return the seconds until Batch kills the agent or evicts the node; None if unknown."""
        notice = self._task.notices.notice if self._task.notices else None
        times = (self._task.retry_budget.left_s, notice.left_s if notice else None)
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _flush(self, timeout_s: float | None = None) -> None:
        if self._streams is None:
            return
        began = time.monotonic()
        devices = self.attempt.devices
        finishes = [self._streams.finish_script, self._streams.finish_events]
        finishes += [devices.finish] if devices is not None else []
        for finish in finishes:
            try:
                finish(timeout_s)
            except Exception as err:  # noqa: BLE001
                # An incomplete log must not prevent the outcome.
                logger.warning("some records were not written: %s", err)
        took_s = time.monotonic() - began
        if took_s > LONG_FLUSH_S:
            self.attempt.events.stages_s["logs"] = round(took_s, 3)

    def _end(
        self,
        why: str,
        exit_code: int | None,
        step: str | None,
        message: str | None = None,
        load: ResumeFailure | None = None,
    ) -> None:
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
            self._records.write_end(end)
        except StorageRequestError as err:
            # A missing end.json must not prevent the outcome of the run.
            logger.warning("could not record why the attempt ended: %s", err)

    def _node_ends(self) -> str:
        """Return when this node will be evicted, or an empty string.

        A run over several nodes has none, because its notices may be about another node.
        """
        notice = self._task.notices.notice if self._task.notices else None
        if notice is None or self._task.nodes_token:
            return ""
        moment = datetime.now(timezone.utc) + timedelta(seconds=notice.left_s)  # noqa: UP017
        return moment.isoformat(timespec="milliseconds")

    def _checkpoint_summary(self) -> dict[str, Any] | None:
        return self._attempt.checkpoints.summary() if self._attempt else None

    def _commit(
        self,
        outputs: list[OutputFile],
        failure: StageFailedError | None,
        left_out: Sequence[LeftOut] = (),
        early: str | None = None,
        hold: NodeHold | None = None,
    ) -> int:
        events = self._attempt.events if self._attempt is not None else None
        if events is not None and events.content is not None:
            self._records.keep(self._records.paths.attempt_events(self._number), events.content)
        metrics = self._streams.metrics.last() if self._streams else {}
        devices = self._attempt.devices if self._attempt is not None else None
        result = RunResult(
            status="succeeded",
            attempt=self._number,
            exit_code=0,
            code=STOPPED_EARLY if early else None,
            message=f"stopped early: {early}" if early else None,
            started=datetime.fromisoformat(self._started),
            stages_s=events.stages_s if events is not None else {},
            metrics={name: float(value) for name, value in metrics.items()},
            outputs=tuple(outputs),
            checkpoint=self._checkpoint_summary(),
            left_out=tuple(left_out),
            devices=devices.summary() if devices is not None else None,
        )
        if not self._records.commit_attempt(result, failure, hold):
            logger.info("the run's outcome was decided before this attempt ended")
            recorded = self._records.exit_code()
            return FAILED_EXIT_CODE if recorded is None else recorded
        if failure is None:
            logger.info("succeeded, %d files exported", len(outputs))
            return 0
        return failure.exit_code or FAILED_EXIT_CODE
