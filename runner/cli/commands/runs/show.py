"""`runner show`: the details of a run, or the states of a group."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from runner.cli.options import Invocation, RunOrGroupArgument, on_target
from runner.cli.ui.groups import show_group
from runner.cli.ui.output import local_time
from runner.cli.ui.run_display import expected_text, metric_pairs, output_pairs, took_pairs
from runner.core.units import format_count, format_duration, format_size, parse_moment
from runner.protocol.git_requirements import describe_commits
from runner.protocol.metrics import MetricSummary, describe_non_finite, format_metric

if TYPE_CHECKING:
    from runner.views.details import RunDetails


_LISTED = 10


def lines(shown: RunDetails) -> dict[str, str]:
    """Return the lines about all subjects, in order, as value by label."""
    pairs: dict[str, str] = {}
    for subject in SUBJECTS:
        pairs |= {name: text for name, text in subject(shown).items() if text}
    return pairs


def state(shown: RunDetails) -> dict[str, str]:
    """Return the lines about state, recipe, and pool."""
    spec, status = shown.view.spec, shown.view.status
    since = status.cause.since if status.cause and status.cause.stuck else None
    kept = shown.view.kept
    return {
        "state": status.text,
        "node": f"kept {kept.describe(datetime.now(UTC))}\n{kept.advice}" if kept else "",
        "since": local_time(since) if since else "",
        "because": "\n".join(status.cause.evidence) if status.cause else "",
        "fix": status.fix,
        "recipe": spec.recipe,
        "experiment": spec.experiment,
        "created": local_time(spec.created),
        "where": f"pool {spec.pool}"
        + (", spot" if spec.spot else "")
        + (f", {spec.nodes} nodes" if spec.nodes > 1 else ""),
        "image": spec.image or "",
    }


def nodes(shown: RunDetails) -> dict[str, str]:
    """Return the lines about the node of each rank in the newest attempt."""
    if not shown.attempts or not shown.attempts[-1].others:
        return {}
    names = (shown.attempts[-1].node, *shown.attempts[-1].others)
    return {"nodes": ", ".join(f"{rank}: {name or '-'}" for rank, name in enumerate(names))}


def pools(shown: RunDetails) -> dict[str, str]:
    """Return the lines about the pools that the run may use, and those that it has left."""
    from runner.core.planning.fallback import describe_stay
    from runner.flows.runs.attempts import describe_waits

    spec = shown.view.spec
    lines: dict[str, str] = {}
    if (rule := spec.fallback) is not None:
        after, times = format_duration(rule.after_s), format_count(rule.evictions, "eviction")
        lines["pools"] = f"{', '.join(rule.pools)}; the next after {after} or {times} per hour"
    left: list[str] = []
    for stay in spec.moved_from:
        when, why = parse_moment(stay.until), describe_stay(stay, rule)
        at = f" until {local_time(when)}" if when else ""
        left.append(f"{stay.pool}{at}{f': {why}' if why else ''}")
    lines["moved from"] = "\n".join(left)
    lines["waited"] = describe_waits(spec, shown.attempts)
    return lines


def origin(shown: RunDetails) -> dict[str, str]:
    """Return the line about the run that it repeats or resumes."""
    found, before = shown.view.spec.origin, shown.view.spec.resume_from
    lines: dict[str, str] = {}
    if found:
        lines["origin"] = f"{found.kind} of {found.run_id}"
    if before:
        number = before.checkpoint
        which = "newest checkpoint" if number is None else f"checkpoint {number}"
        lines["resumes"] = f"{which} of {before.run_id}"
    return lines


def command(shown: RunDetails) -> dict[str, str]:
    """Return the lines about command, parameters and variables."""
    spec = shown.view.spec
    params, env = (
        ", ".join(f"{name}={value}" for name, value in pairs.items())
        for pairs in (spec.all_params, spec.env)
    )
    return {"command": shlex.join(spec.command), "parameters": params, "env": env}


def code(shown: RunDetails) -> dict[str, str]:
    """Return the lines about code, git revision, and packages."""
    found = shown.view.spec.code
    git = found.git_revision
    changed = " with uncommitted changes" if found.git_dirty else ""
    return {
        "code": f"sha256 {found.sha256[:12]}, {format_size(found.size_bytes)}"
        if found.sha256
        else "",
        "git": f"{git[:12]}{changed}" if git else "",
        "environment": _environment(shown),
        "from git": _from_git(shown),
    }


def _environment(shown: RunDetails) -> str:
    requirements, found = shown.view.spec.requirements_file, shown.environment
    parts = [requirements] if requirements else []
    if found:
        packages: Mapping[str, str] = found.get("packages") or {}
        parts += [f"Python {found.get('python') or 'unknown'}"]
        parts += [f"{len(packages)} package{'s' if len(packages) > 1 else ''}"] if packages else []
        parts += [text for text in (found.get("cpu"), *(found.get("gpus") or ())) if text]
    return ", ".join(parts)


def _from_git(shown: RunDetails) -> str:
    """Return the packages from git: as installed, or else the commits that the run recorded."""
    installed: Any = (shown.environment or {}).get("git")
    if installed and isinstance(installed, dict):  # a script of the run may write it
        pairs = cast("dict[str, object]", installed).items()
        return ", ".join(f"{name} {url}" for name, url in pairs)
    return describe_commits(shown.view.spec.commits)


def live_outputs(shown: RunDetails) -> dict[str, str]:
    """Return the line with the command that downloads live outputs, such as a notebook."""
    spec = shown.view.spec
    return {
        name: shlex.join(["runner", "files", "get", spec.run_id, name])
        for name in spec.live_outputs
    }


def data(shown: RunDetails) -> dict[str, str]:
    """Return the line about the data set."""
    found = shown.view.spec.data
    if found is None:
        return {}
    text = f"{found.name} from {found.source}"
    return {"data": f"{text}: {found.notice}" if found.notice else text}


def metrics(shown: RunDetails) -> dict[str, str]:
    """Return the lines about the last and best value of each metric, and the expected ranges."""
    values = {summary.name: _metric(summary) for summary in shown.metrics}
    found = metric_pairs(shown.view.spec, values)
    last = {summary.name: summary.last for summary in shown.metrics}
    result = shown.view.result
    return found | {
        "expected": expected_text(shown.view.spec, result) if result else "",
        "not finite": describe_non_finite(last, shown.view.spec.run_id),
    }


def time(shown: RunDetails) -> dict[str, str]:
    """Return the lines about the duration of the run, and of its last attempt if it had several."""
    if shown.view.result is None:
        return {}
    began = shown.attempts[0].started if shown.attempts else ""
    return took_pairs(shown.view.result, datetime.fromisoformat(began) if began else None)


def devices(shown: RunDetails) -> dict[str, str]:
    """Return the line about the use of GPU, CPU and memory."""
    return {"devices": shown.devices.describe() if shown.devices else ""}


def outputs(shown: RunDetails) -> dict[str, str]:
    """Return the lines about kept files with their origin, other files, and the URL."""
    from runner.flows.runs.outputs import output_url

    result = shown.view.result
    if result is None:
        return {}
    url = output_url(shown.connection, shown.view.spec.run_id, result)
    return output_pairs(result, _LISTED, sizes=True) | ({"in blob": url} if result.outputs else {})


def checkpoints(shown: RunDetails) -> dict[str, str]:
    """Return the line about the checkpoint that a resumed run would start from."""
    problem = {"checkpoint problem": shown.checkpoint_problem}
    if not shown.checkpoints:
        return problem
    newest, older = shown.checkpoints[0], len(shown.checkpoints) - 1
    more = f", and {older} older" if older else ""
    return {"checkpoint": f"{newest.name}, {format_size(newest.size_bytes)}{more}", **problem}


def models(shown: RunDetails) -> dict[str, str]:
    """Return the line about the registered versions of models."""
    register = f"; runner models register {shown.view.spec.run_id}"
    return {
        f"model {model.name}": f"{model}{'' if model.version else register}"
        for model in shown.models
    }


def attempt_rows(shown: RunDetails) -> list[dict[str, Any]]:
    """Return the rows of the table of attempts."""
    return [
        {
            "attempt": row.attempt,
            "pool": row.pool,
            "waited": None if row.waited_s is None else format_duration(row.waited_s),
            "node": row.node + (f" and {len(row.others)} more" if row.others else ""),
            "spot": row.spot,
            "started": local_time(datetime.fromisoformat(row.started)) if row.started else None,
            "took": None if row.took_s is None else format_duration(row.took_s),
            "ended": row.why
            + (f" in {row.step}" if row.step else "")
            + (", not loaded" if row.not_loaded else ""),
            "exit_code": row.exit_code,
            "lost": row.lost_text,
            "resumed_from": row.resumed.text(shown.view.spec.run_id) if row.resumed else None,
        }
        for row in shown.attempts
    ]


ATTEMPT_COLUMNS = ("attempt", "node", "spot", "started", "took", "ended", "exit_code")

SUBJECTS: tuple[Callable[[RunDetails], dict[str, str]], ...] = (
    state,
    nodes,
    pools,
    origin,
    command,
    code,
    data,
    metrics,
    time,
    devices,
    checkpoints,
    outputs,
    live_outputs,
    models,
)


def _metric(summary: MetricSummary) -> str:
    last = format_metric(summary.last)
    if summary.best is None or summary.best == summary.last:
        return last
    step = f" at step {summary.best_step}" if summary.best_step is not None else ""
    return f"{last}, best {format_metric(summary.best)}{step}"


@on_target
def show(call: Invocation, run: RunOrGroupArgument = "@last") -> None:
    """Show state, parameters, metrics, attempts and outputs of a run, or the states of a group."""
    from runner.flows.runs.group_documents import find_run_or_group
    from runner.flows.submit.submit_group import finish_interrupted
    from runner.flows.sweeps.groups import load_group_view
    from runner.protocol.groups import RunGroup
    from runner.views.details import load_details, run_document

    out = call.out
    connection = call.connect()
    spec = find_run_or_group(connection, run)
    if isinstance(spec, RunGroup):
        finish_interrupted(connection)
        show_group(out, load_group_view(connection, spec))
        return
    shown = load_details(connection, spec)
    if out.document(run_document(shown)):
        return
    out.record(lines(shown), title=spec.run_id)
    if shown.attempts:
        out.text()
        lost = any(row.lost_text for row in shown.attempts)
        resumed = any(row.resumed for row in shown.attempts)
        moved = ("pool",) if shown.view.spec.moved_from else ()
        columns = ("attempt", *moved, *ATTEMPT_COLUMNS[1:]) + (("lost",) if lost else ())
        columns += ("waited",) if any(row.waited_s is not None for row in shown.attempts) else ()
        columns += ("resumed_from",) if resumed else ()
        out.rows(attempt_rows(shown), columns, spare=("spot", "node"))
