"""What cannot be undone, in words and numbers: made of what commands print with `-o json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from runner.core.units import format_age, format_count, format_size
from runner.page.forms import Loss, Values, texts
from runner.protocol.host import format_usd

_KEPT_SHOWN = 5
_CHANGES_SHOWN = 20


def _rows(document: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", document) if isinstance(document, list) else []


def _runs(document: Mapping[str, Any], _: Values) -> str:
    runs: Sequence[Mapping[str, Any]] = document["runs"]
    files, size = format_count(document["files"], "file"), format_size(document["size_bytes"])
    kept = [f"{each['run_id']} is kept: {each['why']}." for each in document["kept"][:_KEPT_SHOWN]]
    if len(document["kept"]) > _KEPT_SHOWN:
        kept.append(f"{len(document['kept']) - _KEPT_SHOWN} more are kept.")
    lost = f"{format_count(len(runs), 'run')} with {files}, {size}, would be lost for good."
    return " ".join([lost if runs else "Nothing would be deleted.", *kept])


def _run_ends(document: Mapping[str, Any], _: Values) -> str:
    if "run_id" not in document:
        return ""
    if document["result"] is not None:
        return f"The run has ended already: {document['state']}."
    checkpoints: Sequence[Mapping[str, Any]] = document["checkpoints"]
    if not checkpoints:
        return "It has no checkpoint: all that it has computed would be lost."
    newest = checkpoints[0]
    at = datetime.fromisoformat(newest["time"])
    step = f" at step {newest['step']}" if newest["step"] is not None else ""
    age = format_age(max(datetime.now(UTC) - at, at - at))
    return f"What it computed after its newest checkpoint{step}, {age} ago, would be lost."


def _versions(document: Any, values: Values) -> str:
    model = "".join(texts(values, "model")[:1])
    _, _, wanted = model.partition("@")
    rows = [row for row in _rows(document) if wanted in ("", str(row["version"]))]
    size = format_size(sum(row["size_bytes"] or 0 for row in rows))
    aliases = sorted({alias for row in rows for alias in row["aliases"]} - {"latest", "best"})
    text = f"{format_count(len(rows), 'version')} of the model, {size}, would be lost for good."
    return text + (f" Its aliases: {', '.join(aliases)}." if aliases else "")


def _files(document: Any, _: Values) -> str:
    rows = _rows(document)
    size = format_size(sum(row["size_bytes"] for row in rows))
    return (
        f"{format_count(len(rows), 'file')}, {size}, would be lost for good. "
        "Runs that used them can no longer be reproduced."
    )


def _pool(document: Mapping[str, Any], _: Values) -> str:
    nodes = format_count(document["nodes"], "node")
    again = document["created_again_by"]
    text = f"Pool {document['pool']} with {nodes} of {document['vm_size']} would be deleted."
    return f"{text} It is created again by {again}." if again else text


def _node_tasks(document: Any, values: Values) -> str:
    node = "".join(texts(values, "node")[:1])
    running = sum(row["running_tasks"] for row in _rows(document) if row["node"] == node)
    if not running:
        return "No task runs on the node."
    count = format_count(running, "running task")
    return f"What {count} computed after the newest checkpoint would be lost."


def _pool_tasks(document: Mapping[str, Any], _: Values) -> str:
    running = document["running_tasks"]
    if not running:
        return "No task runs in the pool."
    count = format_count(running, "running task")
    return f"What {count} computed after the newest checkpoint would be lost, unless you wait."


def _active(document: Any, _: Values) -> str:
    count = len(_rows(document))
    if not count:
        return "No run is active."
    return (
        f"{format_count(count, 'run')} would stop, and start again with the services, from the "
        "newest checkpoint if there is one."
    )


def _firings(document: Mapping[str, Any], _: Values) -> str:
    states = [run["state"] for each in document["firings"] for run in each["runs"]]
    active = sum(state in ("queued", "preparing", "running", "paused") for state in states)
    return (
        f"It has started {format_count(len(states), 'run')}, which are kept; "
        f"{format_count(active, 'active run')} would be cancelled."
    )


def _freed(document: Mapping[str, Any], _: Values) -> str:
    count = format_count(len(document["items"]), "item")
    return f"{count}, {format_size(document['size_bytes'])}, would be deleted."


def _trials_end(document: Mapping[str, Any], _: Values) -> str:
    """Say what ends with a sweep, of `sweep show`."""
    states: Mapping[str, int] = document["states"]
    running = states.get("running", 0) + states.get("preparing", 0)
    waiting = states.get("queued", 0) + states.get("paused", 0)
    return _work_ends(running, waiting, sum(states.values()) - running - waiting, "trial")


def _tasks_end(document: Mapping[str, Any], _: Values) -> str:
    """Say what ends with a group, of `show`."""
    states = [each["state"] for each in document["tasks"]]
    running = states.count("running") + states.count("preparing")
    waiting = states.count("queued")
    return _work_ends(running, waiting, len(states) - running - waiting, "run")


def _work_ends(running: int, waiting: int, ended: int, noun: str) -> str:
    if not running + waiting:
        return f"All {format_count(ended, noun)} have ended already."
    parts: list[str] = []
    if running:
        count = format_count(running, f"running {noun}")
        parts.append(f"What {count} computed after the newest checkpoint would be lost.")
    if waiting:
        parts.append(f"{format_count(waiting, f'waiting {noun}')} would not start.")
    return " ".join([*parts, f"{format_count(ended, noun)} ended before and would be kept."])


def _all_runs(document: Any, values: Values) -> str:
    count = format_count(len(_rows(document)), "run")
    if texts(values, "state"):
        return f"{count} would be kept; those that are active would end."
    return f"{count} with their files, and all models, would be lost for good."


def _changes(document: Mapping[str, Any], _: Values) -> str:
    changes: Sequence[Mapping[str, Any]] = document.get("changes") or ()
    if not changes:
        return "Nothing would change."
    shown = [f"{each['change']} {each['name']}" for each in changes[:_CHANGES_SHOWN]]
    more = len(changes) - len(shown)
    return "; ".join(shown) + (f"; and {more} more." if more else ".")


def _stack(document: Any, values: Values) -> str:
    count = format_count(len(_rows(document)), "run")
    if texts(values, "everything"):
        return f"{count} with their files, all models and all data would be lost for good."
    return f"All pools and nodes would be deleted; {count} would be kept."


def _evaluation(document: Mapping[str, Any], _: Values) -> str:
    if document["error"]:
        return f"The formula fails now: {document['error']['message']}"
    sizes = {"spot": document["spot"], "dedicated": document["dedicated"]}
    wanted = [
        format_count(size, f"{kind} node") for kind, size in sizes.items() if size is not None
    ]
    return f"It would set {' and '.join(wanted)} now." if wanted else ""


def _submission(document: Mapping[str, Any], _: Values) -> str:
    """Say what a file with tasks would start, of its dry run."""
    runs: Mapping[str, Any] = document.get("runs") or {}
    return f"It would start {format_count(len(runs), 'run')}." if runs else ""


def _budget(document: Any, values: Values) -> str:
    """Say what the budget of the form has refused to exceed so far."""
    wanted = values.get("experiment") or None
    found = next((each for each in _rows(document) if each.get("experiment") == wanted), None)
    if found is None:
        return ""
    cap, spent = (format_usd(found[key]) for key in ("cap_micros", "spent_micros"))
    return f"Nothing would keep the costs below {cap}, of which {spent} are spent."


SWEEP_ENDS = Loss(("sweep", "show", "{sweep}"), _trials_end)
GROUP_ENDS = Loss(("show", "{sweep}"), _tasks_end)
SWEEP_RUNS = Loss(("rm", "{sweep}", "--dry-run"), _runs)
RUNS = Loss(("rm", "{run}", "--dry-run"), _runs)
RUN_ENDS = Loss(("show", "{run}"), _run_ends)
POOL = Loss(("pool", "rm", "{pool}", "--dry-run"), _pool)
POOL_TASKS = Loss(("pool", "show", "{pool}"), _pool_tasks)
NODE_TASKS = Loss(("pool", "nodes", "{pool}"), _node_tasks)
BUDGET = Loss(("budget", "ls"), _budget)
MODELS = Loss(("models", "ls", "{model}"), _versions)
DATA = Loss(("data", "ls", "{path}", "--recursive"), _files)
SERVICES = Loss(("ps", "--all", "--status=queued,preparing,running"), _active)
SCHEDULES = Loss(("schedule", "show", "{schedule}"), _firings)
DISK = Loss(("local", "prune", "--dry-run"), _freed, takes="")
ALL_RUNS = Loss(("ps", "--all", "--trials"), _all_runs)
DEPLOYMENT = Loss(("preview",), _changes, takes="stack")
STACK = Loss(("ps", "--all", "--trials"), _stack)
FORMULA = Loss(("pool", "autoscale", "evaluate", "{formula}", "--pool={pool}"), _evaluation)
SUBMISSION = Loss(("submit", "{file}", "--dry-run"), _submission)
