"""What `runner show` tells about a run, a function for each subject.

A subject is a function of `Shown` that returns lines by their name; one without a text is left
out. A new one is written here or elsewhere and named in `SUBJECTS`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.cli.run_text import local_time, where_time_went
from runner.cli.run_text import metric as metric_text
from runner.core.units import format_duration, format_size

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.core.metrics import MetricSummary
    from runner.flows.attempts import AttemptRow
    from runner.flows.model_registration import RunModel
    from runner.flows.run_view import RunView
    from runner.node.checkpoint import Checkpoint

_LISTED = 10


@dataclass(frozen=True, slots=True)
class Shown:
    """One run with everything that was read of it."""

    connection: Connection
    view: RunView
    metrics: Sequence[MetricSummary]
    attempts: Sequence[AttemptRow]
    environment: Mapping[str, Any] | None
    checkpoints: Sequence[Checkpoint]
    models: Sequence[RunModel]
    checkpoint_problem: str

    @property
    def raw(self) -> Mapping[str, Any]:
        """`run.json`."""
        return self.view.record.raw


def lines(shown: Shown) -> dict[str, str]:
    """All subjects, in order."""
    pairs: dict[str, str] = {}
    for subject in SUBJECTS:
        pairs |= {name: text for name, text in subject(shown).items() if text}
    return pairs


def state(shown: Shown) -> dict[str, str]:
    """How it is, and what it is."""
    record, status = shown.view.record, shown.view.status
    shown_state = status.state.value
    return {
        "state": f"{shown_state}: {status.reason}" if status.reason else shown_state,
        "fix": status.fix,
        "recipe": record.recipe,
        "experiment": record.experiment,
        "created": local_time(record.created),
        "where": f"pool {record.pool}"
        + (", spot" if record.spot else "")
        + (f", {record.nodes} nodes" if record.nodes > 1 else ""),
        "image": _image(shown),
    }


def _image(shown: Shown) -> str:
    image: Mapping[str, Any] = shown.raw.get("image") or {}
    return str(image.get("name") or "")


def nodes(shown: Shown) -> dict[str, str]:
    """Where each rank of the newest attempt is, or was."""
    if not shown.attempts or not shown.attempts[-1].others:
        return {}
    names = (shown.attempts[-1].node, *shown.attempts[-1].others)
    return {"nodes": ", ".join(f"{rank}: {name or '-'}" for rank, name in enumerate(names))}


def origin(shown: Shown) -> dict[str, str]:
    """The run that it repeats or goes on from."""
    found, before = shown.raw.get("origin"), shown.raw.get("resume_from")
    lines: dict[str, str] = {}
    if found:
        lines["origin"] = f"{found.get('kind')} of {found.get('run_id')}"
    if before:
        number = before.get("checkpoint")
        which = "newest checkpoint" if number is None else f"checkpoint {number}"
        lines["resumes"] = f"{which} of {before.get('run_id')}"
    return lines


def command(shown: Shown) -> dict[str, str]:
    """What runs."""
    params = ", ".join(f"{name}={value}" for name, value in shown.view.record.params.items())
    return {"command": shlex.join(shown.raw.get("command") or ()), "parameters": params}


def code(shown: Shown) -> dict[str, str]:
    """Which code, and with which packages."""
    found: Mapping[str, Any] = shown.raw.get("code") or {}
    git = found.get("git_revision")
    changed = " and changes, which the archive holds" if found.get("git_dirty") else ""
    return {
        "code": f"sha256 {found['sha256'][:12]}, {format_size(found.get('size_bytes') or 0)}"
        if found
        else "",
        "git": f"{git[:12]}{changed}" if git else "",
        "environment": _environment(shown),
    }


def _environment(shown: Shown) -> str:
    requirements, found = shown.raw.get("requirements"), shown.environment
    parts = [requirements["file"]] if requirements else []
    if found:
        packages: Mapping[str, str] = found.get("packages") or {}
        parts += [f"Python {found.get('python') or 'unknown'}"]
        parts += [f"{len(packages)} package{'s' if len(packages) > 1 else ''}"] if packages else []
        parts += [text for text in (found.get("cpu"), *(found.get("gpus") or ())) if text]
    return ", ".join(parts)


def data(shown: Shown) -> dict[str, str]:
    """The data set."""
    found = shown.raw.get("data")
    if not found:
        return {}
    text = f"{found['name']} from {found['source']}"
    return {"data": f"{text}: {found['notice']}" if found.get("notice") else text}


def metrics(shown: Shown) -> dict[str, str]:
    """Last and best of each metric."""
    from runner.core.metrics import not_finite_text

    found = {summary.name: _metric(summary) for summary in shown.metrics}
    last = {summary.name: summary.last for summary in shown.metrics}
    return found | {"not finite": not_finite_text(last, shown.view.record.run_id)}


def time(shown: Shown) -> dict[str, str]:
    """How long the attempt took that decided."""
    result = shown.view.result
    if result is None or result.started is None or result.ended is None:
        return {}
    return {
        "took": format_duration((result.ended - result.started).total_seconds()),
        "of which": where_time_went(result.stages_s),
    }


def outputs(shown: Shown) -> dict[str, str]:
    """What it wrote, and where that lies."""
    from runner.cli.run_summary import output_url

    result = shown.view.result
    if result is None or not result.outputs:
        return {}
    listed = [f"{file.path} ({format_size(file.size_bytes)})" for file in result.outputs[:_LISTED]]
    more = len(result.outputs) - len(listed)
    return {
        "outputs": ", ".join(listed) + (f" and {more} more" if more else ""),
        "in blob": output_url(shown.connection, shown.view.record.run_id, result),
    }


def checkpoints(shown: Shown) -> dict[str, str]:
    """Which one the run, or another one, would go on from."""
    problem = {"checkpoint problem": shown.checkpoint_problem}
    if not shown.checkpoints:
        return problem
    newest, older = shown.checkpoints[0], len(shown.checkpoints) - 1
    more = f", and {older} older" if older else ""
    return {"checkpoint": f"{newest.name}, {format_size(newest.size_bytes)}{more}", **problem}


def models(shown: Shown) -> dict[str, str]:
    """The versions of models that it made."""
    again = f"; runner models register {shown.view.record.run_id}"
    return {
        f"model {model.name}": f"{model}{'' if model.version else again}" for model in shown.models
    }


def attempt_rows(shown: Shown) -> list[dict[str, Any]]:
    """The table of attempts."""
    from datetime import datetime

    return [
        {
            "attempt": row.attempt,
            "node": row.node + (f" and {len(row.others)} more" if row.others else ""),
            "spot": row.spot,
            "started": local_time(datetime.fromisoformat(row.started)) if row.started else None,
            "took": None if row.took_s is None else format_duration(row.took_s),
            "ended": row.why + (f" in {row.step}" if row.step else ""),
            "exit_code": row.exit_code,
            "resumed_from": row.resumed.text(shown.view.record.run_id) if row.resumed else None,
        }
        for row in shown.attempts
    ]


ATTEMPT_COLUMNS = ("attempt", "node", "spot", "started", "took", "ended", "exit_code")

SUBJECTS: tuple[Callable[[Shown], dict[str, str]], ...] = (
    state,
    nodes,
    origin,
    command,
    code,
    data,
    metrics,
    time,
    checkpoints,
    outputs,
    models,
)


def _metric(summary: MetricSummary) -> str:
    last = metric_text(summary.last)
    if summary.best is None or summary.best == summary.last:
        return last
    step = f" at step {summary.best_step}" if summary.best_step is not None else ""
    return f"{last}, best {metric_text(summary.best)}{step}"
