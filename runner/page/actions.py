"""Actions: each is a command of `runner`, which the page shows, and starts when it is confirmed.

The page changes nothing by itself, so an action does exactly what the command line does, with the
same checks, errors and exit codes. Words of a command are values of a form, never a shell's text.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from runner.flows.child_python import command_of
from runner.page.ask import Ask, WebPage, read_form
from runner.page.rendering import render
from runner.page.source import Source
from runner.protocol.errors import RunnerError

_MOST_JOBS = 50
_SAME_S = 10.0  # a command that somebody else has just started is not started again
_END_S = 0.7
_MAX_OUTPUT = 200_000


@dataclass(frozen=True, slots=True)
class Action:
    """A command that a button starts.

    Attributes:
        name: The last part of its address.
        title: The text of the button.
        words: The words of the command; `{name}` is a value of the form, which may be empty.
        asks: What the page asks before it starts, with what would be lost; empty if it can be
            undone.
        options: Options of the command by the name of a value; a value that is empty is left out.
        after: Where the browser goes afterwards; `{name}` as in `words`.
        on_target: False for a command that has no option `--target`.
    """

    name: str
    title: str
    words: tuple[str, ...]
    asks: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    after: str = "/runs"
    on_target: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The values that its words need."""
        found = (name for word in self.words for _, name, _, _ in Formatter().parse(word))
        return tuple(dict.fromkeys(filter(None, found)))

    def argv(self, values: Mapping[str, str]) -> list[str]:
        """Return the command for the values of a form. Raise RunnerError if one is missing."""
        try:
            words = [word.format_map(values) for word in self.words]
        except KeyError as err:
            raise RunnerError(
                "R-PAGE-QUERY", f"the form has no value {err}", fix="open the page again"
            ) from err
        for name, option in self.options.items():
            if values.get(name):
                words += [option] if values[name] == "on" else [f"{option}={values[name]}"]
        bad = next((word for word in words if not word or "\0" in word), None)
        if bad is not None:
            raise RunnerError("R-PAGE-QUERY", "a value of the form is empty", fix="fill it in")
        for template, word in zip(self.words, words, strict=False):
            if word.startswith("-") and not template.startswith("-"):
                raise RunnerError(
                    "R-PAGE-QUERY",
                    f"{word[:40]!r} is not a value of this form",
                    why="it would be an option of the command",
                    fix="use the command line for options that the page does not have",
                )
        return words


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action("cancel", "Cancel", ("cancel", "{run}"), asks="The run ends; outputs are kept."),
        Action("retry", "Retry", ("retry", "{run}", "--detach")),
        Action("resume", "Resume", ("resume", "{run}", "--detach")),
        Action("reproduce", "Reproduce", ("reproduce", "{run}", "--detach")),
        Action("register", "Register the model", ("models", "register", "{run}")),
        Action(
            "rm",
            "Delete",
            ("rm", "{run}", "--yes"),
            asks="Its files, logs and checkpoints are deleted. This cannot be undone.",
        ),
        Action(
            "pool-resize",
            "Resize the pool",
            ("pool", "resize", "{pool}", "{spot}"),
            options={"dedicated": "--dedicated", "disable_autoscale": "--disable-autoscale"},
            after="/pools/{pool}",
        ),
        Action(
            "pool-drain",
            "Drain the pool",
            ("pool", "drain", "{pool}"),
            options={"to": "--to", "running": "--running"},
            after="/pools/{pool}",
        ),
        Action(
            "pool-enable", "Enable the pool", ("pool", "enable", "{pool}"), after="/pools/{pool}"
        ),
        Action(
            "pool-rm",
            "Delete the pool",
            ("pool", "rm", "{pool}", "--yes"),
            asks="Its nodes and the files on them are deleted, and a formula that was applied by "
            "hand. Runs and their outputs are kept. This cannot be undone.",
            after="/pools",
        ),
        Action(
            "node-disable",
            "Disable scheduling",
            ("pool", "disable", "{pool}", "{node}"),
            after="/pools/{pool}",
        ),
        Action(
            "node-enable",
            "Enable scheduling",
            ("pool", "enable", "{pool}", "{node}"),
            after="/pools/{pool}",
        ),
        Action(
            "evict",
            "Evict the node",
            ("local", "evict", "{node}", "--pool", "{pool}"),
            asks="Work since the last checkpoint is lost, and the files on the node.",
            options={"notice": "--notice", "away": "--away"},
            after="/pools/{pool}",
            on_target=False,
        ),
    )
}


@dataclass(slots=True)
class StartedCommand:
    """A command that was started: what it has printed so far, and how it ended."""

    number: int
    action: Action
    argv: list[str]
    values: Mapping[str, str]
    progress: str = ""
    output: str = ""
    exit_code: int | None = None
    ended_at: float | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def command(self) -> str:
        """The command as a person types it."""
        return shlex.join(["runner", *self.argv])

    @property
    def run_id(self) -> str:
        """The run that it made, empty if it made none."""
        document = self.document
        if not isinstance(document, dict):  # a list, or nothing that can be read
            return ""
        return str(cast("dict[str, Any]", document).get("run_id") or "")

    @property
    def document(self) -> Any:
        """What it printed on stdout as JSON, or None."""
        try:
            return json.loads(self.output)
        except ValueError:
            return None


class Actions:
    """The commands of one server."""

    def __init__(self, source: Source, on_change: Callable[[], None]) -> None:
        self._source = source
        self._on_change = on_change
        self.known = ACTIONS
        self.jobs: dict[int, StartedCommand] = {}
        self._processes: set[asyncio.subprocess.Process] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, name: str) -> Action:
        """Return an action by its name. Raise RunnerError if it is unknown."""
        if name not in self.known:
            raise RunnerError("R-PAGE-UNKNOWN", f"unknown action {name!r}", fix="/runs")
        return self.known[name]

    def routes(self, context_of: Callable[[Request], dict[str, Any]]) -> list[Route]:
        """Return the addresses of the forms; `context_of` returns what every template has."""

        async def ask(request: Request) -> Response:
            action = self.find(request.path_params["name"])
            values = dict(request.query_params)
            context = context_of(request) | {
                "title": action.title,
                "action": action,
                "values": values,
                "command": shlex.join(["runner", *action.argv(values)]),
            }
            return HTMLResponse(render("action.html", None, context))

        async def act(request: Request) -> Response:
            action = self.find(request.path_params["name"])
            job = await self.start(action, await read_form(request))
            return RedirectResponse(f"/jobs/{job.number}", 303)

        return [Route("/act/{name}", ask), Route("/act/{name}", act, methods=["POST"])]

    @property
    def page(self) -> WebPage:
        """The page of a command that was started."""

        async def read(ask: Ask) -> dict[str, Any]:
            job = self.jobs.get(int(ask.parts["number"]))
            if job is None:
                raise RunnerError(
                    "R-PAGE-UNKNOWN", "this command is not known any more", fix="/runs"
                )
            return {"title": job.action.title, "job": job}

        return WebPage("/jobs/{number:int}", "job", read, every_s=0.5)

    async def start(self, action: Action, values: Mapping[str, str]) -> StartedCommand:
        """Start the command of an action.

        Raises:
            RunnerError: R-PAGE-TWICE, the same command runs, or ended just now.
        """
        number, argv = max(self.jobs, default=0) + 1, action.argv(values)
        for other in self.jobs.values():
            is_recent = other.ended_at is None or time.monotonic() - other.ended_at < _SAME_S
            if other.argv == argv and is_recent and other.exit_code in (None, 0):
                raise RunnerError(
                    "R-PAGE-TWICE",
                    "the same command was started just now",
                    why="by somebody else, or by a second click",
                    fix=f"/jobs/{other.number}",
                )
        job = self.jobs[number] = StartedCommand(number, action, argv, values)
        while len(self.jobs) > _MOST_JOBS:
            del self.jobs[min(self.jobs)]
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def close(self) -> None:
        """End the commands that run: first as by Ctrl-C, so that they leave nothing half done."""
        running = [each for each in self._processes if each.returncode is None]
        for process in running:
            _signal(process, signal.SIGINT)
        waiting = [asyncio.ensure_future(each.wait()) for each in running]
        if waiting:
            await asyncio.wait(waiting, timeout=_END_S)
        for process in running:
            if process.returncode is None:
                _signal(process, signal.SIGKILL)

    async def _run(self, job: StartedCommand) -> None:
        target = self._target_words() if job.action.on_target else []
        words = command_of("runner", *job.argv, *target, "-o", "json")
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
            start_new_session=True,  # Ctrl-C of the server is none of the command
        )
        self._processes.add(process)
        stdout, stderr = process.stdout, process.stderr
        if stdout is None or stderr is None:  # never: both are pipes
            raise RuntimeError("a command was started without pipes")

        async def read_progress() -> None:
            async for line in stderr:
                job.progress = (job.progress + line.decode("utf-8", "replace"))[-_MAX_OUTPUT:]

        output, _ = await asyncio.gather(stdout.read(), read_progress())
        job.output = output.decode("utf-8", "replace")
        job.exit_code = await process.wait()
        job.ended_at = time.monotonic()
        self._processes.discard(process)
        self._on_change()
        job.ended.set()

    def _target_words(self) -> list[str]:
        settings = self._source.settings
        words = ["--target", settings.target.name]
        if settings.target.has_stacks:
            words += ["--stack", settings.stack]
            words += ["--team", settings.team] if settings.team else []
        return words


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a command and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
