"""Draws what watching a run yields: stages on stderr, the script's output line by line."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from runner.cli.output import StageView

if TYPE_CHECKING:
    from runner.core.progress import StageState
    from runner.core.run_record import StageEvent
    from runner.flows.watch_events import LogText, RunEnded, StatusChanged, WatchEvent

LAST_LINES = 20
MESSAGE_WIDTH = 60  # leaves room for the bar on 100 columns


class RunDisplay:
    """Renders one run; `log_to_stderr` keeps stdout free for one final document."""

    def __init__(self, view: StageView, run_id: str, *, log_to_stderr: bool = False) -> None:
        self.shown: deque[str] = deque(maxlen=LAST_LINES)
        self._view = view
        self._run_id = run_id
        self._log_to_stderr = log_to_stderr
        self._rest = {"stdout": "", "stderr": ""}
        self._booting = False
        self._attempt = 1
        self._metrics: dict[str, str] = {}
        self._command_runs = False

    def show(self, event: WatchEvent) -> RunEnded | None:
        """Draw one event; the last one is handed back."""
        from runner.flows import watch_events as events

        match event:
            case events.LogText():
                self._log(event)
            case events.StatusChanged():
                self._status(event)
            case events.NodesSeen(counts):
                self._boot("progress", _nodes(dict(counts)))
            case events.StageReported(stage):
                self._boot("end", "")
                self._stage_reported(stage)
            case events.MetricSeen(point):
                self._metric(point.name, point.value, point.step)
            case events.LogSkipped(stream, size_bytes):
                self._skipped(stream, size_bytes)
            case events.ContactLost(why):
                self._say(f"warning: no contact ({why}); trying again, the run is not affected")
            case events.ContactRestored():
                self._say("contact again")
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
        elif self._booting and status.reason:
            self._boot("progress", status.reason)

    def _boot(self, state: StageState, message: str) -> None:
        from runner.core.progress import Progress

        if self._booting:
            self._booting = state != "end"
            self._view.on_progress(Progress("boot", state, message))

    def _stage_reported(self, event: StageEvent) -> None:
        from runner.core.progress import Progress
        from runner.core.run_record import ASIDES

        if event.attempt != self._attempt:
            self._attempt = event.attempt
            self._say(f"attempt {event.attempt}")
        if event.stage == "notice" or (event.stage in ASIDES and event.state == "failed"):
            self._say(f"warning: {event.message}")
            return
        if event.stage not in ASIDES:
            self._command_runs = event.stage == "command" and event.state in {"start", "progress"}
        self._view.on_progress(
            Progress(
                event.stage, event.state, _short(event.message), event.done, event.total, event.unit
            )
        )

    def _metric(self, name: str, value: float, step: int | None) -> None:
        from runner.cli.run_text import metric
        from runner.core.progress import Progress

        self._metrics[name] = metric(value)
        if not self._command_runs:
            return
        values = "  ".join(f"{key} {text}" for key, text in list(self._metrics.items())[-4:])
        message = values if step is None else f"step {step}  {values}"
        self._view.on_progress(Progress("command", "progress", message))

    def _skipped(self, stream: str, size_bytes: int) -> None:
        from runner.core.units import format_size

        flag = " --stderr" if stream == "stderr" else ""
        self._say(
            f"{format_size(size_bytes)} of older {stream} left out: "
            f"runner logs {self._run_id}{flag}"
        )

    def _log(self, event: LogText) -> None:
        *lines, rest = (self._rest[event.stream] + event.text).split("\n")
        self._rest[event.stream] = _last_redraw(rest)
        for line in lines:
            self._line(event.stream, line)

    def _line(self, stream: str, line: str) -> None:
        text = _last_redraw(line).rstrip("\r")
        self.shown.append(text)
        self._view.log(text, error=self._log_to_stderr or stream == "stderr")

    def _say(self, line: str) -> None:
        """A line for people, above the stages that are being drawn."""
        self._view.log(line, error=True)

    def _flush(self) -> None:
        for stream, rest in self._rest.items():
            if rest:
                self._line(stream, rest)
        self._rest = {"stdout": "", "stderr": ""}


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_WIDTH else message[: MESSAGE_WIDTH - 1] + "…"


def _last_redraw(line: str) -> str:
    """Of a line that was redrawn with carriage returns, what stayed on the screen."""
    kept = line.rstrip("\r")
    return kept.rsplit("\r", 1)[-1] + line[len(kept) : len(kept) + 1]


def _nodes(counts: dict[str, int]) -> str:
    if not counts:
        return "the pool has no nodes yet"
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
