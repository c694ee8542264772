"""Records of a run in blob: claim an attempt, write its end, and commit `result.json` once.

One record is in the task's folder: that the script succeeded there (`FinishedScript`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from runner.node.failures import StageFailedError
from runner.node.script.streams import Streams, last_metrics
from runner.node.script.workspace import AttemptDirs, boot_id
from runner.node.script.written import Collected
from runner.node.settings import NodeSettings
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.codec import DAMAGED
from runner.protocol.encoding import now_text, parse_json
from runner.protocol.metrics import MetricValue
from runner.protocol.paths import RunPaths
from runner.protocol.results import (
    AttemptEnd,
    AttemptStart,
    LeftOut,
    NodeTimes,
    OutputFile,
    RunResult,
    index_blob,
    index_metadata,
)
from runner.protocol.run_spec import PoolStay, RunSpec
from runner.protocol.sweeps import STOPPED_EARLY
from runner.protocol.usage import MAX_ATTEMPTS, load_usage, usage_to_json

_UPTIME = Path("/proc/uptime")
_SSH_FOLDER = Path("/etc/ssh")
NO_LOGS: Mapping[str, int] = {"stdout": 0, "stderr": 0}  # the sizes of logs before the first agent


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


def find_log_offsets(runs: ContainerClient, blobs: RunPaths) -> dict[str, int]:
    """Return the size of each log in bytes, by stream.

    Afterwards, appends of earlier attempts that are still under way are rejected.
    """
    offsets: dict[str, int] = {}
    for stream, blob in (("stdout", blobs.stdout), ("stderr", blobs.stderr)):
        found = runs.reject_pending_appends(blob)
        offsets[stream] = found.size_bytes if found else 0
    return offsets


def claim_attempt(
    runs: ContainerClient,
    blobs: RunPaths,
    node: NodeSettings,
    log_offsets: Mapping[str, int],
    own: dict[str, bytes] | None = None,
) -> int:
    """Claim the next free attempt number and return it; numbers start from 1.

    The record of the attempt is added to `own`, the documents that this agent wrote.
    """
    number = 1
    while True:
        start = describe_start(node, number, log_offsets)
        content = json.dumps(start.to_json()).encode()
        if runs.create(blobs.attempt_start(number), content):
            if own is not None:
                own[blobs.attempt_start(number)] = content
            return number
        number = max([number, *_taken_numbers(runs, blobs)]) + 1


def failures_before(runs: ContainerClient, blobs: RunPaths, attempt: int) -> int:
    """Return how many earlier attempts failed.

    Lost and terminated ones do not count, nor those that only could not load their checkpoint.
    """
    ends = (_read_end(runs, blobs, number) for number in range(1, attempt))
    return sum(end.get("why") == "failed" and not end.get("resume_failed") for end in ends)


def write_end(runs: ContainerClient, blobs: RunPaths, end: AttemptEnd) -> bytes:
    """Write end.json of an attempt, and return its content."""
    content = json.dumps(end.to_json()).encode()
    runs.put(blobs.attempt_end(end.attempt), content)
    return content


def _read_end(runs: ContainerClient, blobs: RunPaths, number: int) -> dict[str, Any]:
    """Return end.json, or {} if it is missing (the attempt was lost) or damaged."""
    try:
        end: Any = parse_json(runs.get(blobs.attempt_end(number)) or b"{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", end) if isinstance(end, dict) else {}


def _taken_numbers(runs: ContainerClient, blobs: RunPaths) -> list[int]:
    rests = (name[len(blobs.attempts) :] for name in runs.list_names(blobs.attempts))
    return [int(rest.split("/")[0]) for rest in rests if rest.split("/")[0].isdigit()]


logger = logging.getLogger(__name__)


def recorded_exit_code(runs: ContainerClient, blobs: RunPaths) -> int | None:
    """Return the exit code of a run that ended, 1 if its result is damaged, or None."""
    body = runs.get(blobs.result)
    if body is None:
        return None
    try:
        result: dict[str, Any] = parse_json(body)
        code, status = result.get("exit_code"), result.get("status")
    except (ValueError, AttributeError):
        return 1
    if isinstance(code, int):
        return code
    return 0 if status == "succeeded" else 1


def commit_attempt(  # noqa: PLR0913 - one argument for each part of the document
    runs: ContainerClient,
    blobs: RunPaths,
    *,
    attempt: int,
    started: str,
    stages_s: Mapping[str, float],
    metrics: Mapping[str, MetricValue],
    outputs: Sequence[OutputFile] = (),
    failure: StageFailedError | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    left_out: Sequence[LeftOut] = (),
    early: str | None = None,
    own: Mapping[str, bytes] | None = None,
) -> bool:
    """Write the outcome of a run whose last attempt ended; see `commit_result`.

    Args:
        runs: the container of runs.
        blobs: the names of the run's blobs.
        attempt: the number of the last attempt.
        started: when it started, as ISO 8601 text.
        stages_s: the seconds of each stage.
        metrics: the last value of each metric.
        outputs: the exported files.
        failure: why the run failed, or None if it succeeded.
        checkpoint: the summary of its checkpoints.
        left_out: files that were not kept.
        early: why the sweep stopped this trial early, which counts as a success.
        own: documents that this agent wrote, by blob name, so that they need not be read.

    Returns:
        False if an outcome existed.
    """
    result = RunResult(
        status="failed" if failure else "succeeded",
        attempt=attempt,
        evicted=_count_evicted(runs, blobs, attempt),
        exit_code=failure.exit_code if failure else 0,
        step=failure.step if failure else None,
        code=failure.code if failure else STOPPED_EARLY if early else None,
        message=failure.message if failure else f"stopped early: {early}" if early else None,
        rank=failure.rank if failure else 0,
        started=datetime.fromisoformat(started),
        ended=datetime.now(timezone.utc),  # noqa: UP017 - the agent runs on 3.10
        stages_s=stages_s,
        metrics={n: float(v) if isinstance(v, str) else v for n, v in metrics.items()},
        outputs=tuple(outputs),
        output=blobs.output(attempt).removeprefix(blobs.root),
        checkpoint=checkpoint,
        partial=(failure is not None or early is not None) and bool(outputs),
        left_out=tuple(left_out),
    )
    return commit_result(runs, blobs, result, own)


def commit_result(
    runs: ContainerClient,
    blobs: RunPaths,
    result: RunResult,
    own: Mapping[str, bytes] | None = None,
) -> bool:
    """Write result.json and the run's entry in the index. Return False if an outcome existed."""
    document = result.to_json(blobs.run_id)
    first = runs.create(blobs.result, json.dumps(document, indent=2).encode())
    if first:
        _write_index(runs, blobs, document, own or {})
    return first


def _count_evicted(runs: ContainerClient, blobs: RunPaths, attempt: int) -> int | None:
    """Return how many earlier attempts were lost with their node, or None if storage fails.

    Attempts that ended on request (a move to another pool, a pause) do not count.
    """
    if attempt == 1:
        return 0
    try:
        run: Mapping[str, Any] = parse_json(runs.get(blobs.run) or b"{}")
        batch: Mapping[str, Any] = run.get("batch") or {}
        resources: Mapping[str, Any] = run.get("resources") or {}
        moved = {stay.requeued for stay in map(PoolStay.from_json, batch.get("moved_from") or ())}
        is_single = int(resources.get("nodes") or 1) == 1
        evicted = 0
        for number in set(range(1, attempt)) - moved:
            end = _read_end(runs, blobs, number)
            was_asked = is_single and end.get("why") == "terminated" and not end.get("node_ends")
            evicted += end.get("why") != "failed" and not was_asked
        return evicted
    except (StorageRequestError, *DAMAGED) as err:
        logger.warning("how earlier attempts ended is not known: %s", err)
        return None


def _write_index(
    runs: ContainerClient,
    blobs: RunPaths,
    result: Mapping[str, Any],
    own: Mapping[str, bytes],
) -> None:
    """Update the run's entry in the index. A failure is only logged."""

    def read(name: str) -> bytes | None:
        return own[name] if name in own else runs.get(name)

    try:
        run: dict[str, Any] = parse_json(read(blobs.run) or b"{}")
        metadata = index_metadata(run, result, _usage(read, blobs, run, result))
        runs.put_metadata(index_blob(result["run_id"]), metadata)
    except (StorageRequestError, ValueError, AttributeError, TypeError) as err:
        logger.warning("the run's entry in the index could not be written: %s", err)


def _usage(
    read: Callable[[str], bytes | None],
    blobs: RunPaths,
    run: Mapping[str, Any],
    result: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Return the node time of the attempts for the index, or None if it cannot be read."""
    try:
        resources: Mapping[str, Any] = run.get("resources") or {}
        nodes = int(resources.get("nodes") or 1)
        status, ended = result["status"], result["ended"]
        found = load_usage(
            read,
            blobs.run_id,
            nodes=nodes,
            status=status,
            ended=ended,
            attempts=result["attempt"] or MAX_ATTEMPTS,
        )
        return usage_to_json(found)
    except (StorageRequestError, *DAMAGED) as err:
        logger.warning("the usage of the attempts is not in the index: %s", err)
        return None


def write_node_start(
    runs: ContainerClient, blobs: RunPaths, node: NodeSettings, number: int
) -> None:
    """Write the start record of an attempt on the node of this rank."""
    start = describe_start(node, number, find_log_offsets(runs, blobs), blobs.rank)
    runs.put(blobs.attempt_start(number), json.dumps(start.to_json()).encode())


FINISHED_FILE = "finished.json"  # in the task's working directory


class FinishedScript:
    """The record, in a task's folder, that the script of an earlier attempt succeeded there.

    If the export fails because of storage, or the agent is killed during it, the next attempt in
    that folder only exports. A node that was restarted may have lost unsynced writes: there the
    script runs again. Create an instance before the attempt clears the folders.

    Attributes:
        attempt: the number of that attempt, whose outputs are still in the folder. It is None if
            the script has to run.
        environment: the folder of its Python environment.
        metrics: the last values of its metrics.
        collected: the files that it wrote elsewhere, or None if the script has to run.
    """

    def __init__(self, work_dir: Path, spec: RunSpec) -> None:
        self._path = work_dir / FINISHED_FILE
        self._spec = spec
        self.attempt: int | None = None
        self.environment = Path()
        self.metrics: dict[str, MetricValue] = {}
        self.collected: Collected | None = None
        try:
            self._read(AttemptDirs.below(work_dir))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.forget()

    def _read(self, dirs: AttemptDirs) -> None:
        raw: dict[str, Any] = parse_json(self._path.read_bytes())
        if raw["of"] != self._identity() or not dirs.output.is_dir():
            raise ValueError("the record is of another run, or older than the start of the node")
        environment, collected = Path(raw["environment"]), Collected.from_json(raw["collected"])
        # The agent may have written the record before it had read the last metrics.
        last = last_metrics(dirs.metrics, dirs.stdout, self._spec, any_form=raw["printed"])
        metrics, attempt = {**raw["metrics"], **last}, int(raw["attempt"])
        self.attempt, self.environment = attempt, environment
        self.metrics, self.collected = metrics, collected

    def _identity(self) -> list[str]:
        """Return what the record is valid for: the run, its code and this start of the node."""
        return [self._spec.run_id, self._spec.code.sha256, boot_id()]

    def save(self, attempt: int, environment: Path, collected: Collected, streams: Streams) -> None:
        """Record that the script succeeded. A failure to write is only logged."""
        if self._spec.nodes > 1:
            return  # the script on another node may still fail
        try:
            document = {
                "of": self._identity(),
                "attempt": attempt,
                "environment": str(environment),
                "metrics": streams.metrics.last(),
                "collected": collected.to_json(),
                "printed": streams.is_searched,
            }
            part = self._path.with_suffix(".part")
            part.unlink(missing_ok=True)  # the script may have made it a link
            with part.open("x", encoding="utf-8") as file:
                file.write(json.dumps(document))
            part.replace(self._path)
        except OSError as err:
            logger.warning("an attempt after this one would run the script again: %s", err)

    def forget(self) -> None:
        """Remove the record, so that the next attempt runs the script."""
        self.attempt = None
        try:
            self._path.unlink(missing_ok=True)
        except OSError as err:
            logger.warning("%s cannot be removed: %s", self._path, err)
