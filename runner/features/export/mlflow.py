"""Export a run to MLflow: the first export creates the MLflow run, later ones update it.

The tag `runner.run_id` identifies the MLflow run. Only new metric values are sent, because MLflow
stores every value that it receives.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.azure.auth.credentials import Connection
from runner.core.file_lock import file_lock
from runner.core.home import HomePaths
from runner.core.masking import Mask
from runner.core.points import StepPoint, final_points
from runner.core.progress import OnProgress
from runner.flows.extras import load_extra
from runner.flows.runs.documents import load_history
from runner.flows.runs.live import RunView, load_view
from runner.flows.runs.outputs import download_outputs
from runner.protocol.errors import RunnerError
from runner.protocol.results import RunResult
from runner.protocol.run_spec import RunSpec

_QUERY = re.compile(r"(https?://[^\s\"'?]+)\?[^\s\"']*")
_TAG = "runner.run_id"
_NAME_LIMIT = 250
_PARAM_LIMIT = 6000
_TAG_LIMIT = 5000
_BATCH_METRICS = 1000  # limits of one log_batch, by its documentation
_BATCH_OTHERS = 100
_UNNAMEABLE = re.compile(r"[^\w\-. /]")
_WAIT_S = 60.0
_VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # the user has not agreed to it
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is reserved for data
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # its default of 7 takes minutes
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions reject folders without it
}
_STATES = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED", "lost": "FAILED"}


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported run, and what this export added."""

    where: str
    id: str
    created: bool
    points: int
    files: int


def export_to_mlflow(
    connection: Connection,
    spec: RunSpec,
    home: Path,
    uri: str | None,
    on_progress: OnProgress,
    *,
    artifacts: bool = True,
) -> Exported:
    """Create or update the run in MLflow at `uri`, by default MLFLOW_TRACKING_URI."""
    address = _address(uri)
    view = load_view(connection, spec)
    points = list(final_points(*load_history(connection, spec)))
    with _mlflow(address, home) as client:
        known, created = _find_or_create(client, view)
        run_id = str(known.info.run_id)
        _describe(client, run_id, view)
        new = _new_points(client, run_id, points)
        _send(client, run_id, metrics=new)
        files = 0
        if artifacts and view.result is not None and view.result.outputs:
            files = _send_files(client, run_id, connection, spec, on_progress)
        _set_state(client, run_id, view)
    return Exported(_where(address, known.info), run_id, created, len(new), files)


def _address(uri: str | None) -> str:
    found = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not found:
        raise RunnerError(
            "R-EXPORT-URI",
            "missing MLflow address",
            why="neither --uri nor MLFLOW_TRACKING_URI is set",
            fix="use --uri http://HOST:5000, or a folder: --uri ./mlruns",
        )
    if "://" in found or found.startswith(("file:", "databricks")):
        return found
    return Path(found).expanduser().absolute().as_uri()


@contextmanager
def _mlflow(address: str, home: Path) -> Generator[Any]:
    """Yield a client; a lock prevents two exports from creating the run twice."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    tracking = load_extra("mlflow", "mlflow.tracking")
    trouble = load_extra("mlflow", "mlflow.exceptions").MlflowException
    with file_lock(HomePaths(home).export_lock, what="exporting", timeout_s=_WAIT_S):
        try:
            yield tracking.MlflowClient(tracking_uri=address)
        except (trouble, OSError) as err:
            raise _refused(_without_password(address), err) from err


def _find_or_create(client: Any, view: RunView) -> tuple[Any, bool]:
    spec = view.spec
    experiment = client.get_experiment_by_name(spec.experiment)
    if experiment is not None and experiment.lifecycle_stage != "active":
        raise RunnerError(
            "R-EXPORT-DELETED",
            f"the MLflow experiment {spec.experiment!r} was deleted",
            why="MLflow accepts no runs for it, and no new experiment with that name",
            fix=f"mlflow experiments restore --experiment-id {experiment.experiment_id}",
        )
    number = (
        client.create_experiment(spec.experiment)
        if experiment is None
        else experiment.experiment_id
    )
    found = client.search_runs([number], filter_string=f"tags.`{_TAG}` = '{spec.run_id}'")
    if found:
        return found[0], False
    started = view.result.started if view.result and view.result.started else spec.created
    tags = {_TAG: spec.run_id, "mlflow.runName": spec.run_id}
    begun = int(started.timestamp() * 1000)
    return client.create_run(number, start_time=begun, tags=tags, run_name=spec.run_id), True


def _describe(client: Any, run_id: str, view: RunView) -> None:
    entities = load_extra("mlflow", "mlflow.entities")
    known = lineage(view.spec, view.result)
    tags = {f"runner.{name}": value[:_TAG_LIMIT] for name, value in known.items()}
    tags["mlflow.source.name"] = view.spec.recipe
    if revision := known.get("code.git_revision"):
        tags["mlflow.source.git.commit"] = revision
    given = Mask().document(view.spec.all_params)  # MLflow has more readers than the run
    params = {_name(name): str(value)[:_PARAM_LIMIT] for name, value in given.items()}
    there: dict[str, str] = client.get_run(run_id).data.params
    new = [entities.Param(name, value) for name, value in params.items() if name not in there]
    _send(client, run_id, params=new)
    _send(client, run_id, tags=[entities.RunTag(name, value) for name, value in tags.items()])


def _new_points(client: Any, run_id: str, points: Iterable[StepPoint]) -> list[Any]:
    """Return the points that MLflow does not have, compared by name, step and time."""
    entities = load_extra("mlflow", "mlflow.entities")
    there: dict[str, set[tuple[int, int]]] = {}
    new: list[Any] = []
    for point in points:
        name, time_ms = _name(point.name), int(point.time_s * 1000)
        if name not in there:
            history: list[Any] = client.get_metric_history(run_id, name)
            there[name] = {(metric.step, metric.timestamp) for metric in history}
        if (point.step, time_ms) not in there[name]:
            new.append(entities.Metric(name, point.value, time_ms, point.step))
    return new


def _send(client: Any, run_id: str, **kinds: list[Any]) -> None:
    for kind, items in kinds.items():
        size = _BATCH_METRICS if kind == "metrics" else _BATCH_OTHERS
        for begin in range(0, len(items), size):
            client.log_batch(run_id, **{kind: items[begin : begin + size]})


def _send_files(
    client: Any, run_id: str, connection: Connection, spec: RunSpec, on_progress: OnProgress
) -> int:
    """Send outputs that MLflow lacks or has with another size; outputs of a run never change."""
    with tempfile.TemporaryDirectory(prefix="runner-export-") as folder:
        fetched = download_outputs(connection, spec, Path(folder), on_progress)
        there: dict[str, dict[str, int | None]] = {}
        sent = 0
        for file in fetched.files:
            parent, _, _ = file.path.rpartition("/")
            if parent not in there:
                found: list[Any] = client.list_artifacts(run_id, parent or None)
                there[parent] = {str(each.path): each.file_size for each in found}
            if there[parent].get(file.path) != file.size_bytes:
                client.log_artifact(run_id, str(fetched.folder / file.path), parent or None)
                sent += 1
    return sent


def _set_state(client: Any, run_id: str, view: RunView) -> None:
    state = view.status.state
    if not state.final:
        client.update_run(run_id, status="SCHEDULED" if state.value == "queued" else "RUNNING")
        return
    ended = view.result.ended if view.result else None
    end_ms = int(ended.timestamp() * 1000) if ended else None
    client.set_terminated(run_id, _STATES[state.value], end_ms)


def _name(text: str) -> str:
    """Return a name that MLflow accepts: letters, digits and `_-. /`."""
    return _UNNAMEABLE.sub("_", text)[:_NAME_LIMIT]


def _where(address: str, info: Any) -> str:
    """Return the page of the run on a server, else the store."""
    shown = _without_password(address)
    if not shown.startswith(("http://", "https://")):
        return shown
    return f"{shown.rstrip('/')}/#/experiments/{info.experiment_id}/runs/{info.run_id}"


def _without_password(address: str) -> str:
    """Return the address without its password."""
    netloc = urlsplit(address).netloc
    return address.replace(netloc, netloc.rpartition("@")[2], 1) if "@" in netloc else address


def _refused(address: str, err: Exception) -> RunnerError:
    said = str(err).strip().splitlines() or [type(err).__name__]
    return RunnerError(
        "R-EXPORT-MLFLOW",
        f"MLflow at {address} rejected the run",
        why=said[0][:300],
        fix="correct --uri or start the server, then export again to continue",
    )


def lineage(spec: RunSpec, result: RunResult | None) -> dict[str, str]:
    """Return the known facts about origin and result of a run as flat text, without secrets."""
    raw = spec.to_json()
    found: dict[str, Any] = {
        "run_id": spec.run_id,
        "experiment": spec.experiment,
        "recipe": spec.recipe,
        "created": spec.created.isoformat(),
        "command": raw.get("command"),
        "code.sha256": _get_nested(raw, "code", "sha256"),
        "code.git_revision": _get_nested(raw, "code", "git_revision"),
        "code.git_dirty": _get_nested(raw, "code", "git_dirty"),
        "requirements.sha256": _get_nested(raw, "requirements", "sha256"),
        "python": raw.get("python"),
        "image": raw.get("image"),
        "data": _get_nested(raw, "data", "prefix"),
        "inputs": raw.get("inputs"),
        "pool": spec.pool,
        "vm_size": _get_nested(raw, "batch", "vm_size"),
        "spot": spec.spot,
        "after": raw.get("after"),
        "group": raw.get("group"),
        "resume_from": raw.get("resume_from"),
        "origin": raw.get("origin"),
        "model": raw.get("model"),
    }
    if result is not None:
        found |= {
            "status": result.status,
            "attempts": result.attempt,
            "exit_code": result.exit_code,
            "failure": ": ".join(filter(None, (result.code, result.message))),
            "outputs": {file.path: file.sha256 for file in result.outputs},
        }
    shown: dict[str, Any] = Mask().document(found)  # such as `--password VALUE` of the command
    return {
        name: _to_text(value) for name, value in shown.items() if value not in (None, "", [], {})
    }


def _get_nested(raw: Mapping[str, Any], part: str, name: str) -> Any:
    found = raw.get(part)
    return found.get(name) if isinstance(found, Mapping) else None  # pyright: ignore


def _to_text(value: Any) -> str:
    """Return a value as text, without the query of a URL, which may be a signature."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return _QUERY.sub(r"\1", text)
