"""Live progress: snapshots for a callback, or a display in a notebook."""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import Any

from runner.api.html import coloured, pairs
from runner.core.progress import Progress
from runner.core.states import RunStatus
from runner.core.units import format_duration
from runner.flows.runs import events as kinds
from runner.flows.runs.events import LogText, RunEnded, WatchEvent
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import format_metric, select_shown

_MAX_LINES = 8
_MAX_LINE_LENGTH = 300
_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Update:
    """A snapshot of a run or another operation.

    `done` of `total` are in `unit`, or None if nothing is counted. `metrics` has the last values,
    `lines` the last log lines. `what` is the name of an operation that is not a run, such as
    `data.put`; its `state` is working, done, failed or interrupted.
    """

    run_id: str | None
    state: str
    stage: str
    message: str
    done: float | None
    total: float | None
    unit: str | None
    metrics: Mapping[str, float]
    lines: tuple[str, ...]
    elapsed_s: float
    what: str = ""

    def __str__(self) -> str:
        shown = select_shown(self.metrics)
        values = "  ".join(f"{name} {self.metrics[name]:.4g}" for name in shown)
        parts = (self.run_id or self.what, self.state, self.stage, self.message, values)
        return "  ".join(part for part in parts if part)


class RunnerWarning(UserWarning):
    """A problem of a submission that does not prevent it."""


OnUpdate = Callable[[Update], None]


class LiveView:
    """Collects progress and passes on snapshots, at most four per second."""

    def __init__(self, show: OnUpdate, run_id: str | None = None, what: str = "") -> None:
        self._show = show
        self._run_id = run_id
        self._what = what
        self._state = "working" if what else "submitting" if run_id is None else ""
        self._progress: Progress | None = None
        self._metrics: dict[str, float] = {}
        self._lines = deque[str](maxlen=_MAX_LINES)
        self._incomplete_lines: dict[str, str] = {}
        self._began = time.monotonic()
        self._shown: float | None = None

    def on_progress(self, progress: Progress) -> None:
        """Show a step on this machine. This method is an OnProgress."""
        self._progress = progress
        self._send(at_once=progress.state != "progress")

    def on_warning(self, text: str) -> None:
        """Issue a RunnerWarning."""
        warnings.warn(text, RunnerWarning, stacklevel=2)

    def submitted(self, run_id: str) -> None:
        """Set the run ID."""
        self._run_id, self._state = run_id, "queued"
        self._send(at_once=True)

    def over(self, state: str) -> None:
        """Show the end of an operation that is not a run.

        A failure before the first snapshot is not shown.
        """
        if self._run_id is None and (self._shown is not None or state == "done"):
            self._state, self._progress = state, None
            self._send(at_once=True)

    def counted(self, state: str, done: int, lines: Sequence[str]) -> None:
        """Show the number of finished runs of a group, and a line for each."""
        self._state = state
        self._progress = Progress("tasks", "progress", "", done, len(lines), "runs")
        self._lines = deque(lines)
        self._send(at_once=True)

    def follow(self, events: Iterator[WatchEvent], timeout_s: float | None) -> RunStatus:
        """Show a run until it has ended. Raise RunnerError (R-TIMEOUT) after `timeout_s`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for event in events:
            if isinstance(event, RunEnded):
                self._show_end(event.status)
                return event.status
            self._handle(event)
            self._send()
            if until is not None and time.monotonic() > until:
                raise timeout_error(
                    str(self._run_id), timeout_s, f"runner.run({self._run_id!r}).wait()"
                )
        raise AssertionError("watching ends with RunEnded")

    def _handle(self, event: WatchEvent) -> None:
        match event:
            case kinds.StatusChanged(status):
                self._state = status.state.value
            case kinds.StageReported(stage):
                self._progress = Progress(
                    stage.stage, stage.state, stage.message, stage.done, stage.total, stage.unit
                )
            case kinds.MetricSeen(point):
                self._metrics[point.name] = point.value
            case kinds.LogText():
                self._log(event)
            case _:
                pass

    def _log(self, event: LogText) -> None:
        *lines, rest = (self._incomplete_lines.get(event.stream, "") + event.text).split("\n")
        self._incomplete_lines[event.stream] = rest[-_MAX_LINE_LENGTH:]
        kept = (
            line.rstrip("\r").rsplit("\r", 1)[-1][:_MAX_LINE_LENGTH] for line in lines[-_MAX_LINES:]
        )
        self._lines.extend(kept)

    def _show_end(self, status: RunStatus) -> None:
        self._state, self._progress = status.state.value, None
        self._send(at_once=True, message=status.reason)

    def _send(self, *, at_once: bool = False, message: str = "") -> None:
        now = time.monotonic()
        if not at_once and self._shown is not None and now - self._shown < _INTERVAL_S:
            return
        self._shown = now
        progress = self._progress
        self._show(
            Update(
                run_id=self._run_id,
                state=self._state,
                stage=progress.stage if progress else "",
                message=progress.message if progress else message,
                done=progress.done if progress else None,
                total=progress.total if progress else None,
                unit=progress.unit if progress else None,
                metrics=MappingProxyType(dict(self._metrics)),
                lines=tuple(self._lines),
                elapsed_s=now - self._began,
                what=self._what,
            )
        )


@contextmanager
def live(
    on_progress: OnUpdate | None, run_id: str | None = None, *, what: str = ""
) -> Generator[LiveView]:
    """Yield a view that calls `on_progress`, else one for a notebook, else one without output.

    `what` is the name of an operation that is not a run.
    """
    view = LiveView(on_progress or _notebook_display() or _ignore, run_id, what)
    try:
        yield view
    except BaseException as err:
        with suppress(Exception):  # the callback may have raised it
            view.over("failed" if isinstance(err, Exception) else "interrupted")
        raise
    if what:
        view.over("done")


def _ignore(update: Update) -> None:
    del update


def _notebook_display() -> OnUpdate | None:
    """Return a display that redraws itself in the cell's output; None outside of notebooks."""
    shell = sys.modules.get("IPython")  # loaded in every notebook
    current: Any = shell.get_ipython() if shell is not None else None
    if current is None or not hasattr(current, "kernel"):
        return None
    shown: Any = importlib.import_module("IPython.display")
    handle: Any = None

    def show(update: Update) -> None:
        nonlocal handle
        card = shown.HTML(live_card(update))
        if handle is None:
            handle = shown.display(card, display_id=True)
        else:
            handle.update(card)

    return show


def live_card(update: Update) -> str:
    """Return a snapshot as HTML: a bar if something is counted, metrics, and the last lines."""
    name = escape(update.run_id or update.what or "a new run")
    parts = [f"<div><code>{name}</code> {coloured(update.state)}"]
    if update.stage:
        parts.append(f" &middot; {escape(update.stage)} {escape(update.message)}")
    if update.total:
        share = max(0.0, min(1.0, (update.done or 0.0) / update.total))
        parts.append(f" <progress value='{share:.3f}' max='1'></progress>")
    parts.append(f" <span style='color:gray'>{format_duration(round(update.elapsed_s))}</span>")
    if update.metrics:
        names = select_shown(update.metrics)
        shown = {name: format_metric(update.metrics[name]) for name in names}
        if left := len(update.metrics) - len(names):
            shown["metrics"] = f"and {left:,} more"
        parts.append(f"<div>{pairs(shown)}</div>")
    if update.lines:
        text = escape("\n".join(update.lines))
        parts.append(f"<pre style='color:gray;margin:0'>{text}</pre>")
    return "".join([*parts, "</div>"])


def timeout_error(name: str, timeout_s: float | None, fix: str) -> RunnerError:
    """Build the timeout error for a run or group."""
    return RunnerError(
        "R-TIMEOUT",
        f"{name} has not ended within {format_duration(timeout_s or 0)}",
        why="it is still active; only the wait has ended",
        fix=fix,
    )
