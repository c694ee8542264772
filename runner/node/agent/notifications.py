"""Post notifications of a run to its webhook: its end, many evictions, and a cap that is near.

The agent sends them, so they need no client. A mark in storage, which only one agent can create,
precedes each of them: an event is never sent twice, by whichever attempt or trial. Nothing here can
fail a run. Only the end waits for its notification, for some seconds.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from runner.node.agent.records import RunRecords
from runner.node.context import TaskContext
from runner.node.failures import PREPARE_STAGE, StageFailedError
from runner.node.script.context import AttemptContext
from runner.protocol.groups import LaterRun, RunGroup, group_blob, parse_group
from runner.protocol.host import format_usd
from runner.protocol.notifying.documents import (
    STORM_S,
    Notification,
    NotificationMark,
    find_webhook_format,
    marks_folder,
)
from runner.protocol.notifying.webhooks import LIMIT_S, WebhookError, post_json
from runner.protocol.paths import RunPaths
from runner.protocol.results import RunResult, parse_result
from runner.protocol.run_spec import NotifyRule, RunSpec
from runner.protocol.sweeps import SWEEP_FAILED, TrialReport, TrialSpec, reports_folder

logger = logging.getLogger(__name__)

END_S = 15.0  # for which the end of a run waits for storage and the webhook
VAULT_S = 5.0
_MAX_NAMED = 5  # failed trials in the notification of a sweep
_ENDED = frozenset({"succeeded", "stopped", "failed"})


def _now() -> datetime:
    return datetime.now(timezone.utc)  # noqa: UP017 - the agent runs on 3.10


class Notifier:
    """Sends notifications of one run. No method raises an error."""

    def __init__(self, task: TaskContext, spec: RunSpec) -> None:
        self._task = task
        self._spec = spec
        self.sweep = spec.group if spec.trial else None
        self._folder = marks_folder(spec.run_id, self.sweep)

    @property
    def rule(self) -> NotifyRule:
        """The rule of the run, which has one."""
        if self._spec.notify is None:
            raise RuntimeError("the run has no webhook")
        return self._spec.notify

    @property
    def subject(self) -> str:
        """The ID of the sweep, or of a run that is no trial."""
        return self.sweep or self._spec.run_id

    def make(
        self, event: str, title: str, text: str = "", facts: Mapping[str, str] | None = None,
        *, attempt: int, verb: str = "show",
    ) -> Notification:  # fmt: skip
        """Return a notification about the run."""
        spec = self._spec
        return Notification(
            event=event,
            title=title,
            text=text,
            run_id=spec.run_id,
            sweep=self.sweep,
            recipe=spec.recipe,
            experiment=spec.experiment,
            pool=self._task.node.pool or spec.pool,
            attempt=attempt,
            facts=dict(facts or {}),
            command=f"runner {verb} {self.subject}",
        )

    def read_mark(self, name: str) -> NotificationMark | None:
        """Return a mark, or None without a readable one. Raise StorageRequestError."""
        return NotificationMark.load(self._task.runs.get(f"{self._folder}{name}.json") or b"")

    def send(self, notification: Notification, mark: str) -> None:
        """Send a notification unless its mark exists or the run does not ask for the event."""
        if notification.event not in self.rule.on:
            return
        blob = f"{self._folder}{mark}.json"
        claim = NotificationMark(notification.event, _now(), self._spec.run_id, notification.title)
        if not self._task.runs.create(blob, _to_bytes(claim)):
            return
        try:
            url = self._task.secrets.read_notify_url(VAULT_S)
            body = notification.to_body(find_webhook_format(url, self.rule.format))
            status = post_json(url, json.dumps(body).encode(), self._limit_s())
        except (WebhookError, StageFailedError) as err:
            why = self._task.redactor.text(str(err))
            logger.warning("the notification %r was not delivered: %s", mark, why)
            self._task.runs.put(blob, _to_bytes(replace(claim, error=why)))
            return
        logger.info("the notification %r was delivered", mark)
        self._task.runs.put(blob, _to_bytes(replace(claim, status=status)))

    def _limit_s(self) -> float:
        left_s = self._task.retry_budget.left_s
        return LIMIT_S if left_s is None else min(LIMIT_S, left_s)


def _to_bytes(mark: NotificationMark) -> bytes:
    return json.dumps(mark.to_json()).encode()


def _start(work: Callable[[], None]) -> threading.Thread:
    """Run a function in a thread of its own, and log its errors."""

    def run() -> None:
        try:
            work()
        except Exception as err:
            logger.warning("no notification was sent: %s", type(err).__name__)
            logger.debug("details", exc_info=True)

    thread = threading.Thread(target=run, name="notification", daemon=True)
    thread.start()
    return thread


# -- the end of a run


def notify_end(task: TaskContext, records: RunRecords) -> None:
    """Send how the run ended, if it has ended; that of a sweep, after its last trial.

    An agent that finds a run that has ended sends what the killed one could not send.
    """
    left_s = task.retry_budget.left_s
    thread = _start(lambda: _notify_end(task, records))
    thread.join(END_S if left_s is None else min(left_s, END_S))
    if thread.is_alive():
        logger.warning("the notification is not waited for any longer")


def _notify_end(task: TaskContext, records: RunRecords) -> None:
    run_id = records.paths.run_id
    spec = records.spec or RunSpec.load(records.read(records.paths.run) or b"")
    body = task.runs.get(records.paths.result)
    if spec is None or spec.notify is None or body is None:
        return
    notifier = Notifier(task, replace(spec, run_id=run_id))
    result = parse_result(body, run_id)
    if result.status == "cancelled" and result.code != SWEEP_FAILED:
        return  # by a person, or because a run before it failed
    if spec.trial and spec.group:
        _notify_sweep(task, notifier, spec, result)
    else:
        notification = _describe_run(notifier, spec, result)
        notifier.send(notification, notification.event)


def _describe_run(notifier: Notifier, spec: RunSpec, result: RunResult) -> Notification:
    is_success = result.status == "succeeded"
    facts = {"recipe": spec.recipe, "pool": spec.pool}
    if result.started and result.ended:
        facts["last attempt took"] = _duration((result.ended - result.started).total_seconds())
    evicted = f", {result.evicted} of them evicted" if result.evicted else ""
    facts["attempts"] = f"{result.attempt}{evicted}"
    facts |= {name: f"{value:.6g}" for name, value in _named_metrics(spec, result).items()}
    if not is_success and result.step:
        facts["stage"] = result.step
    if not is_success and result.exit_code is not None:
        facts["exit code"] = str(result.exit_code)
    how = "succeeded" if is_success else f"failed: {result.code or 'unknown reason'}"
    return notifier.make(
        "success" if is_success else "failure",
        f"{spec.run_id} {how}",
        "\n".join(text for text in (result.message, result.error) if text),
        facts,
        attempt=result.attempt,
        verb="show" if is_success else "why",
    )


def _named_metrics(spec: RunSpec, result: RunResult) -> dict[str, float]:
    named = [name for name in spec.named_metrics if name in result.metrics]
    return {name: result.metrics[name] for name in (named or list(result.metrics)[-3:])}


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


# -- the end of a sweep


@dataclass(frozen=True)
class _TrialEnd:
    """How a trial ended; `value` is that of the metric of the sweep."""

    name: str
    state: str
    value: float | None = None
    message: str = ""


def _notify_sweep(task: TaskContext, notifier: Notifier, spec: RunSpec, result: RunResult) -> None:
    """Send one notification about all trials, if this one was the last to end."""
    sweep_id = spec.group or ""
    group = parse_group(task.runs.get(group_blob(sweep_id)) or b"", sweep_id)
    later = task.runs.list_names(LaterRun.folder(sweep_id))
    found = (LaterRun.parse(name, task.runs.get(name) or b"") for name in later)
    group = group.with_later(each for each in found if each is not None)
    ends = _find_ends(task, group, sweep_id)
    if ends is None:
        return
    counts = Counter("stopped early" if end.state == "stopped" else end.state for end in ends)
    facts = {"trials": ", ".join(f"{n} {state}" for state, n in counts.most_common())}
    trial = TrialSpec.from_json(spec.trial or {})
    measured = [end for end in ends if end.value is not None and end.state != "failed"]
    if trial.metric and measured:
        choose = max if trial.goal == "max" else min
        best = choose(measured, key=lambda end: end.value or 0.0)
        facts["best"] = f"{best.name}: {trial.metric} {best.value:.6g}"
    failed = [end for end in ends if end.state == "failed"]
    named = [f"{end.name}: {end.message or 'failed'}" for end in failed[:_MAX_NAMED]]
    if len(failed) > _MAX_NAMED:
        named.append(f"and {len(failed) - _MAX_NAMED} more")
    event = "failure" if failed else "success"
    cancelled = sum(end.state == "cancelled" for end in ends)
    count, what = (len(failed), "failed") if failed else (cancelled, "cancelled")
    how = f"ended, {count} of {len(ends)} trials {what}" if count else "succeeded"
    notification = notifier.make(
        event, f"{sweep_id} {how}", "\n".join(named), facts, attempt=result.attempt,
        verb="sweep show",
    )  # fmt: skip
    # A sweep that is resumed ends again: its later runs have other numbers.
    notifier.send(notification, f"ended-{len(later)}" if later else "ended")


def _find_ends(task: TaskContext, group: RunGroup, sweep_id: str) -> list[_TrialEnd] | None:
    """Return how each trial ended, or None if one has not ended.

    The reports of trials need one request. A trial that never started has none, so its result is
    read.
    """
    listed = task.runs.list_metadata(reports_folder(sweep_id))
    reports = (TrialReport.parse(name, metadata) for name, metadata in listed.items())
    by_run = {report.run_id: report for report in reports if report is not None}
    unknown: list[tuple[str, str]] = []
    ends: list[_TrialEnd] = []
    for name, run_id in group.trial_runs.items():
        report = by_run.get(run_id)
        if report is None:
            unknown.append((name, run_id))
        elif report.state in _ENDED:
            ends.append(_TrialEnd(name, report.state, report.value, report.message))
        else:
            unknown.insert(0, (name, run_id))  # it probably still runs
    for name, run_id in unknown:
        body = task.runs.get(RunPaths(run_id).result)
        if body is None:
            return None
        result = parse_result(body, run_id)
        ends.append(_TrialEnd(name, result.status, None, result.message or ""))
    return ends


# -- evictions


def notify_evictions(task: TaskContext, records: RunRecords, spec: RunSpec, attempt: int) -> None:
    """Send that the run was evicted several times within an hour. Return at once.

    Of a run or a sweep, at most one such notification is sent within an hour.
    """
    notifier = Notifier(task, spec)
    if "evictions" in notifier.rule.on:
        _start(lambda: _notify_evictions(records, notifier, attempt))


def _notify_evictions(records: RunRecords, notifier: Notifier, attempt: int) -> None:
    now = _now()
    since = now - timedelta(seconds=STORM_S)
    evicted = records.find_evicted(attempt)
    recent = [number for number in evicted if (t := records.start_of(number + 1)) and t >= since]
    if len(recent) < notifier.rule.evictions:
        return
    previous = notifier.read_mark(_storm_mark(since))
    if previous is not None and previous.time > since:
        return
    who = records.paths.run_id
    notification = notifier.make(
        "evictions",
        f"{who} was evicted {len(recent)} times within an hour",
        "its next attempt has started on another node",
        {"evictions in all": str(len(evicted))},
        attempt=attempt,
    )
    notifier.send(notification, _storm_mark(now))


def _storm_mark(time: datetime) -> str:
    """Return the mark for the hour of the clock; that of the hour before is looked at, too."""
    return f"evictions-{time:%Y%m%d-%H}"


# -- caps


class CapWatch(threading.Thread):
    """Sends once that a run has used most of its time or of its cost cap. For a `with` block.

    The block contains the script, whose time limit is that of one attempt and includes the stage
    `prepare` before it. The cost cap of a run is a time limit of its job, which begins with the
    submission.
    """

    def __init__(self, task: TaskContext, context: AttemptContext) -> None:
        super().__init__(name="cap", daemon=True)
        self._notifier = Notifier(task, context.spec)
        self._spec = context.spec
        self._attempt = context.number
        self._stages_s = context.events.stages_s
        self._ending = threading.Event()

    def __enter__(self) -> None:
        if "cap" in self._notifier.rule.on and (self._spec.timeout_s or self._spec.job_limit_s):
            self.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()

    def run(self) -> None:
        """Thread body: wait for the earlier limit, and send."""
        share, spec = self._notifier.rule.cap_share, self._spec
        waits: list[tuple[float, str]] = []
        if spec.timeout_s:
            prepared_s = self._stages_s.get(PREPARE_STAGE, 0.0)
            waits.append((max(share * spec.timeout_s - prepared_s, 0.0), "time limit"))
        if spec.job_limit_s:
            used_s = (_now() - spec.created).total_seconds()
            waits.append((max(share * spec.job_limit_s - used_s, 0.0), "cost cap"))
        wait_s, what = min(waits)
        if not self._ending.wait(wait_s):
            notification = self._describe(what, share)
            _start(lambda: self._notifier.send(notification, "cap"))

    def _describe(self, what: str, share: float) -> Notification:
        spec, facts = self._spec, dict[str, str]()
        if spec.timeout_s:
            facts["time limit of an attempt"] = _duration(spec.timeout_s)
        if spec.job_limit_s:
            facts["time limit of the job, from the cost cap"] = _duration(spec.job_limit_s)
        if spec.max_cost_micros and self._notifier.sweep is None:
            facts["cost cap"] = format_usd(spec.max_cost_micros)
        used = f"has used {share:.0%} of its {what}"
        text = (
            "its job ends with the cap"
            if what == "cost cap"
            else "the script is stopped at the limit, and the run fails unless it has retries left"
        )
        return self._notifier.make(
            "cap", f"{spec.run_id} {used}", text, facts, attempt=self._attempt
        )
