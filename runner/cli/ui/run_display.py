"""Display of one run: stages and log lines while it runs, then the summary."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli.ui.output import Output, format_stages, local_time
from runner.cli.ui.terminal import StageDisplay
from runner.core.progress import Progress
from runner.core.units import format_duration, format_size
from runner.protocol.codec import DAMAGED
from runner.protocol.metrics import (
    MAX_NAMES,
    describe_non_finite,
    format_metric,
    range_problems,
    select_shown,
)

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.states import WaitCause
    from runner.flows.models.register import RunModel
    from runner.flows.runs.events import LogText, RunEnded, StatusChanged, WatchEvent
    from runner.protocol.results import RunResult, StageEvent, StageState
    from runner.protocol.run_spec import RunSpec


LAST_LINES = 20
MESSAGE_WIDTH = 60  # leaves room for the bar in 100 columns


class RunDisplay:
    """Display of the events of one run; with `log_to_stderr`, stdout is left for a document."""

    def __init__(self, view: StageDisplay, run_id: str, *, log_to_stderr: bool = False) -> None:
        self.shown: deque[str] = deque(maxlen=LAST_LINES)
        self._view = view
        self._run_id = run_id
        self._log_to_stderr = log_to_stderr
        self._rest = {"stdout": "", "stderr": ""}
        self._booting = False
        self._cause: WaitCause | None = None
        self._attempt = 1
        self._metrics: dict[str, str] = {}
        self._command_runs = False

    def show(self, event: WatchEvent) -> RunEnded | None:
        """Show an event. Return it if it is the last one."""
        from runner.flows.runs import events

        match event:
            case events.LogText():
                self._log(event)
            case events.StatusChanged():
                self._status(event)
            case events.NodesSeen(counts):
                if self._cause is None:
                    self._boot("progress", _nodes(dict(counts)))
            case events.RunMoved() | events.MoveRefused():
                self._print(event.text)
            case events.StageReported(stage):
                self._boot("end", "")
                self._stage_reported(stage)
            case events.MetricSeen(point):
                self._metric(point.name, point.value, point.step)
            case events.LogSkipped(stream, size_bytes):
                self._skipped(stream, size_bytes)
            case events.ContactLost(why):
                self._print(f"warning: connection lost ({why}); retrying, the run is not affected")
            case events.ContactRestored():
                self._print("connection restored")
            case events.StillWatching():
                pass
            case events.RunEnded():
                self._flush()
                return event
        return None

    def _status(self, event: StatusChanged) -> None:
        from runner.core.states import RunState

        status = event.status
        if status.state is RunState.QUEUED:
            self._booting = True
            self._boot("start", status.reason)
            if status.cause not in (None, self._cause):
                self._explain(status.cause)
            self._cause = status.cause
        elif self._booting and status.reason:
            self._boot("progress", status.reason)

    def _explain(self, cause: WaitCause) -> None:
        for line in cause_lines(cause):
            self._print(line)

    def _boot(self, state: StageState, message: str) -> None:
        if self._booting:
            self._booting = state != "end"
            self._view.on_progress(Progress("boot", state, message))

    def _stage_reported(self, event: StageEvent) -> None:
        from runner.protocol.results import SIDE_STAGES

        if event.attempt != self._attempt:
            self._attempt = event.attempt
            self._print(f"attempt {event.attempt}")
        if event.stage == "notice" or (event.stage in SIDE_STAGES and event.state == "failed"):
            self._print(f"warning: {event.message}")
            return
        if event.stage not in SIDE_STAGES:
            self._command_runs = event.stage == "command" and event.state in {"start", "progress"}
        self._view.on_progress(
            Progress(
                event.stage, event.state, _short(event.message), event.done, event.total, event.unit
            )
        )

    def _metric(self, name: str, value: float, step: int | None) -> None:
        self._metrics[name] = format_metric(value)
        if not self._command_runs:
            return
        values = "  ".join(f"{key} {text}" for key, text in list(self._metrics.items())[-4:])
        message = values if step is None else f"step {step}  {values}"
        self._view.on_progress(Progress("command", "progress", message))

    def _skipped(self, stream: str, size_bytes: int) -> None:
        flag = " --stderr" if stream == "stderr" else ""
        self._print(
            f"skipped {format_size(size_bytes)} of older {stream}; "
            f"run `runner logs {self._run_id}{flag}` to read it"
        )

    def _log(self, event: LogText) -> None:
        *lines, rest = (self._rest[event.stream] + event.text).split("\n")
        self._rest[event.stream] = _last_redraw(rest)
        for line in lines:
            self._line(event.stream, line)

    def _line(self, stream: str, line: str) -> None:
        text = _last_redraw(line).rstrip("\r")
        self.shown.append(text)
        self._view.log_script(text, error=self._log_to_stderr or stream == "stderr")

    def _print(self, line: str) -> None:
        self._view.log(line, error=True)

    def _flush(self) -> None:
        for stream, rest in self._rest.items():
            if rest:
                self._line(stream, rest)
        self._rest = {"stdout": "", "stderr": ""}


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_WIDTH else message[: MESSAGE_WIDTH - 1] + "…"


def _last_redraw(line: str) -> str:
    """Return the last part of a line with carriage returns, which a terminal would show."""
    text = line.rstrip("\r")
    return text.rsplit("\r", 1)[-1] + line[len(text) : len(text) + 1]


def cause_lines(cause: WaitCause) -> list[str]:
    """Return lines that explain why a run waits: cause and, if it is stuck, evidence and fix."""
    if not cause.stuck:
        return [cause.message]
    since = f" (since {local_time(cause.since)})" if cause.since else ""
    lines = [f"stuck: {cause.message}{since}", *(f"  {line}" for line in cause.evidence)]
    return [*lines, f"  fix: {cause.fix}"] if cause.fix else lines


def _nodes(counts: dict[str, int]) -> str:
    if not counts:
        return "the pool has no nodes yet"
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def result_document(
    connection: Connection,
    spec: RunSpec,
    ended: RunEnded,
    folder: Path | None,
    model: RunModel | None = None,
) -> dict[str, Any]:
    """Return the outcome for `-o json`: `result.json`, with all locations."""
    from runner.flows.runs.outputs import output_url

    result: dict[str, Any] = dict(ended.result.raw) if ended.result else {}
    return {
        **result,
        "run_id": spec.run_id,
        "status": ended.status.state.value,
        "message": ended.status.reason or None,
        "fix": (ended.gave_up or ended.status).fix or None,
        "cause": ended.gave_up.to_json() if ended.gave_up else None,
        "out_of_range": range_problems(spec.expect, ended.result.metrics) if ended.result else [],
        "experiment": spec.experiment,
        "job_id": spec.job_id,
        "pool": spec.pool,
        "code_sha256": spec.code.sha256,
        "output_url": output_url(connection, spec.run_id, ended.result),
        "output_dir": str(folder) if folder else None,
        "model": dataclasses.asdict(model) if model else None,
    }


def print_summary(
    out: Output,
    connection: Connection,
    spec: RunSpec,
    ended: RunEnded,
    folder: Path | None,
    view: StageDisplay | None = None,
    *,
    model: RunModel | None = None,
) -> None:
    """Print the summary on stderr; `view` has the times since the command started."""
    from runner.flows.runs.outputs import output_url

    pairs = {"status": _status_line(ended)}
    if ended.result is None and ended.status.fix:
        pairs["fix"] = ended.status.fix
    if ended.result:
        first_started = _first_started(connection, spec.run_id, ended.result)
        count = _count_metrics(connection, spec, ended.result)
        pairs |= _result_pairs(spec, ended.result, first_started, count)
        pairs |= _wait_pairs(connection, spec.run_id, ended.result)
        if view:
            pairs |= _total_time(ended.result, view)
    if ended.gave_up and ended.gave_up.fix:
        pairs["fix"] = ended.gave_up.fix
    if ended.result and ended.result.outputs:
        pairs["in blob"] = output_url(connection, spec.run_id, ended.result)
    if folder is not None:
        pairs["on disk"] = str(folder)
    if spec.data and spec.data.notice:
        pairs["data"] = spec.data.notice
    if model is not None:
        pairs["model"] = f"registered {model}" if model.version else str(model)
    if ended.result and ended.result.status == "succeeded" and not ended.result.outputs:
        did_nothing = not ended.result.metrics and not _log_tail(connection, spec, 0)
        out.warning(
            "the run printed nothing and kept no files: does its script call what it defines?"
            if did_nothing
            else "the run kept no files; a model that the script did not save is lost"
        )
    if ended.result and ended.result.status == "succeeded":
        for problem in range_problems(spec.expect, ended.result.metrics):
            out.warning(f"outside the expected range: {problem}")
    commands = _next_commands(spec, ended, folder)
    if model is not None:
        register = f"runner models register {spec.run_id}"
        commands.append(f"runner models get {model.reference}" if model.version else register)
    out.panel(spec.run_id, pairs, commands=commands)


def print_failure(
    out: Output, connection: Connection, spec: RunSpec, ended: RunEnded, display: RunDisplay
) -> None:
    """Print the last log lines of a failed run, unless the display has just shown them."""
    node = ended.result.rank if ended.result else 0
    lines = _log_tail(connection, spec, node) or ended.task_output.splitlines()[-LAST_LINES:]
    shown = list(display.shown)
    if not lines or shown[-len(lines) :] == lines:
        return
    of = f"node {node} of {spec.run_id}" if node else spec.run_id
    out.note(f"the last {len(lines)} lines of {of}:", style="bold")
    for line in lines:
        out.note(f"  {line}")


def _log_tail(connection: Connection, spec: RunSpec, node: int) -> list[str]:
    from runner.flows.runs.logs import last_lines

    stderr = last_lines(connection, spec.run_id, "stderr", LAST_LINES, node)
    return stderr or last_lines(connection, spec.run_id, "stdout", LAST_LINES, node)


def _status_line(ended: RunEnded) -> str:
    from runner.core.states import describe_exit

    state, result = ended.status.state.value, ended.result
    if result is None or result.status == "succeeded":
        return f"{state}: {ended.status.reason}" if ended.status.reason else state
    where = f" in step {result.step}" if result.step else ""
    code = f" ({describe_exit(result.exit_code)})" if result.exit_code is not None else ""
    return f"{state}{where}{code}"


def took_pairs(result: RunResult, first_started: datetime | None = None) -> dict[str, str]:
    """Return the duration of a run, and of its last attempt if it had several.

    Args:
        result: the outcome.
        first_started: the start of the first attempt, None if there was only one.
    """
    if result.started is None or result.ended is None:
        return {}
    stages = format_stages(result.stages_s)
    last = format_duration((result.ended - result.started).total_seconds())
    if first_started is None or result.attempt < 2:
        return {"took": last, **({"of which": stages} if stages else {})}
    whole = format_duration((result.ended - first_started).total_seconds())
    return {
        "took": f"{whole} in {result.attempt} attempts",
        "last attempt": f"{last}, of which {stages}" if stages else last,
    }


def _first_started(connection: Connection, run_id: str, result: RunResult) -> datetime | None:
    """Return the start of the first of several attempts, or None."""
    from runner.flows.runs.documents import load_attempts, runs_container

    if result.attempt < 2:
        return None
    attempts = load_attempts(runs_container(connection), run_id)
    return datetime.fromisoformat(attempts[0].started) if attempts else None


def _wait_pairs(connection: Connection, run_id: str, result: RunResult) -> dict[str, str]:
    """Return how long a run of several attempts waited after evictions and moves."""
    if result.attempt < 2:
        return {}
    from runner.flows.runs.attempts import describe_waits, list_attempts
    from runner.flows.runs.documents import find_run
    from runner.flows.runs.live import load_view

    view = load_view(connection, find_run(connection, run_id))
    waited = describe_waits(view.spec, list_attempts(connection, view))
    return {"waited": waited} if waited else {}


def _count_metrics(connection: Connection, spec: RunSpec, result: RunResult) -> int:
    """Return how many metrics a run has, of which its result has only the first ones."""
    if len(result.metrics) < MAX_NAMES:
        return len(result.metrics)
    from runner.flows.runs.documents import load_metrics

    return len(load_metrics(connection, spec))


def _result_pairs(
    spec: RunSpec, result: RunResult, first_started: datetime | None, count: int
) -> dict[str, str]:
    from runner.core.states import advice_for_result

    pairs: dict[str, str] = {}
    if result.status != "succeeded" and result.message:
        pairs["why"] = result.message
    if fix := advice_for_result(result.code, result.message):
        pairs["fix"] = fix
    pairs |= metric_pairs(spec, {n: format_metric(v) for n, v in result.metrics.items()}, count)
    if expected := expected_text(spec, result):
        pairs["expected"] = expected
    if odd := describe_non_finite(result.metrics, spec.run_id):
        pairs["not finite"] = odd
    pairs |= took_pairs(result, first_started)
    pairs |= _device_pairs(result)
    pairs |= output_pairs(result)
    return pairs


def _device_pairs(result: RunResult) -> dict[str, str]:
    """Return the line about the devices that the last attempt used."""
    if not result.devices:
        return {}
    from runner.protocol.devices import DeviceSummary

    try:
        text = DeviceSummary.from_json(result.devices).describe()
    except DAMAGED:
        return {}
    return {"devices": text} if text else {}


def metric_pairs(
    spec: RunSpec, values: Mapping[str, str], count: int | None = None
) -> dict[str, str]:
    """Return the metrics of a run for one screen, and a line that counts the others.

    Args:
        spec: the run.
        values: what is shown of each metric.
        count: the number of its metrics, if there are more than `values`.
    """
    shown = select_shown(values, (*spec.named_metrics, *(each.metric for each in spec.expect)))
    pairs = {_short_name(name): values[name] for name in shown}
    left = (len(values) if count is None else count) - len(shown)
    return pairs | ({"metrics": f"and {left:,} more: runner metrics {spec.run_id}"} if left else {})


def _short_name(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 3]}..."


def expected_text(spec: RunSpec, result: RunResult) -> str:
    """Return the expected ranges of a run and whether it is within them; empty without any."""
    if result.status == "cancelled" or not spec.expect:
        return ""
    if problems := range_problems(spec.expect, result.metrics):
        return f"outside the range: {'; '.join(problems)}"
    return ", ".join(f"{each.metric} {each}" for each in spec.expect) + ": within"


NOTHING_KEPT = "none: the script wrote no file to its folder or to $RUNNER_OUTPUT_DIR"
_SOURCES = {
    None: "$RUNNER_OUTPUT_DIR",
    "code": "the folder of the script",
    "home": "its home folder",
    "temp": "its temporary folder",
}
_KEPT_IF_NAMED = frozenset({"size", "count", "data"})
_NAME_CHARS = 60  # of the name of a metric
_MAX_LISTED = 5


def output_pairs(
    result: RunResult, listed: int = _MAX_LISTED, *, sizes: bool = False
) -> dict[str, str]:
    """Return the kept files of a run with their origin, and the files that were not kept.

    Args:
        result: Outcome of the run.
        listed: Maximum number of names to show.
        sizes: True shows the size of each file.
    """
    files = result.outputs
    if not files and result.status != "succeeded" and not result.left_out:
        return {}
    names = [f"{f.path} ({format_size(f.size_bytes)})" if sizes else f.path for f in files[:listed]]
    more = f" and {len(files) - listed} more" if len(files) > listed else ""
    total = "" if sizes else f" ({format_size(sum(file.size_bytes for file in files))})"
    partial = "partial: " if result.partial else ""
    pairs = {"outputs": f"{partial}{', '.join(names)}{more}{total}" if files else NOTHING_KEPT}
    places = Counter(_SOURCES.get(file.source, file.source) for file in files)
    places.update(
        f"attempt {file.attempt}{', partial' * file.partial}" for file in files if file.attempt
    )
    if places.keys() - {_SOURCES[None]}:
        counted = (f"{place} ({count})" for place, count in places.items())
        pairs["written to"] = ", ".join(counted)
    if left_out := result.left_out:
        rest = f"; and {len(left_out) - listed} more" if len(left_out) > listed else ""
        pairs["not kept"] = "; ".join(str(each) for each in left_out[:listed]) + rest
        if named := [each.path for each in left_out if each.why in _KEPT_IF_NAMED]:
            glob = named[0].rstrip("/")
            pairs["to keep it"] = f"train with --keep '{glob}', or with `keep` in train.yaml"
    return pairs


def _total_time(result: RunResult, view: StageDisplay) -> dict[str, str]:
    """Return the total time, including the stages on this machine: services, upload, download."""
    inside = {"azurite", *result.stages_s}  # the stage `services` includes `azurite`
    around = format_stages({k: s for k, s in view.seconds.items() if k not in inside})
    total = format_duration(time.monotonic() - view.began)
    return {"in all": f"{total}, with {around}" if around else total}


def _next_commands(spec: RunSpec, ended: RunEnded, folder: Path | None) -> list[str]:
    run_id = spec.run_id
    commands = [f"runner show {run_id}", f"runner logs {run_id}"]
    if ended.result and ended.result.rank:
        commands[1] += f" --node {ended.result.rank} --stderr"
    if ended.result and ended.result.outputs and folder is None:
        commands.append(f"runner files get {run_id}")
    return commands
