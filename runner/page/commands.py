"""The commands that this server has started for its readers: who, when, and how each ended.

A form shows the command, and what it would destroy, before it starts. `job.html` shows its progress
and its outcome.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from typing_extensions import TypedDict

from runner.page.actions import ACTIONS
from runner.page.ask import Ask, WebPage, read_pairs
from runner.page.forms import Action, Values, to_values
from runner.page.processes import (
    CommandAnswer,
    ErrorDocument,
    check_words,
    find_error,
    insert_options,
    is_object,
    parse_document,
    target_words,
)
from runner.page.rendering import render, with_query
from runner.page.source import Source
from runner.protocol.errors import ExitCode, RunnerError

_MOST_JOBS = 50
_MOST_LINKS = 50
_SAME_S = 10.0  # a command that somebody else has just started is not started again
_MAX_OUTPUT = 200_000
_MAX_ADDRESS = 4000
_PIECE = 64 * 1024
_ENDS: Mapping[int, str] = {
    ExitCode.RUN_FAILED: "the run failed",
    ExitCode.USAGE: "the command was refused",
    ExitCode.PREFLIGHT: "something is not ready",
    ExitCode.ACCESS: "access was refused",
    ExitCode.CAPACITY: "there is no quota or capacity",
    ExitCode.COST_CAP: "it would cost more than the cap",
    ExitCode.BUG: "runner has a bug",
    ExitCode.INTERRUPTED: "it was interrupted",
}
# Keys of documents that name something with a page.
_PAGES = {
    "run_id": "/runs/{}", "sweep": "/sweeps/{}", "group": "/sweeps/{}",
    "schedule": "/schedules/{}",
}  # fmt: skip


class CommandDocument(TypedDict):
    """A command of this server; `document` is what it printed with `-o json`."""

    number: int
    action: str
    command: str
    who: str
    started: str
    took_s: float
    exit_code: int | None
    progress: str
    document: Any
    error: ErrorDocument | None


class ActionDocument(TypedDict):
    """What an action would start: its command, what it asks before, and what would be lost."""

    action: str
    title: str
    command: str
    asks: str
    loss: str
    error: ErrorDocument | None


@dataclass(slots=True)
class StartedCommand:
    """A command that was started: what it has printed so far, and how it ended.

    `argv` is what a person types, `words` what is executed: with the target, as JSON.
    """

    number: int
    action: Action
    argv: list[str]
    words: list[str]
    values: Values
    who: str = ""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.monotonic)
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
    def took_s(self) -> float:
        """The seconds that it has taken so far."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.began

    @property
    def document(self) -> Any:
        """What it printed on stdout as JSON, or None."""
        return parse_document(self.output)

    @property
    def error(self) -> ErrorDocument | None:
        """The error that it printed as JSON, or None."""
        return find_error(self.document)

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        if self.exit_code is None:
            return "Running"
        if self.exit_code == ExitCode.OK:
            return "Done"
        return f"Failed: {_ENDS.get(self.exit_code, f'exit code {self.exit_code}')}"

    @property
    def form(self) -> str:
        """The address of its form with its values; empty if they are too long for one."""
        address = with_query(f"/act/{self.action.name}", self.values)
        return address if len(address) < _MAX_ADDRESS else ""

    @property
    def links(self) -> list[tuple[str, str]]:
        """Addresses and names of what it made."""
        document, found = self.document, dict[str, str]()
        documents: list[Any] = (
            cast("list[Any]", document) if isinstance(document, list) else [document]
        )
        for each in documents[:_MOST_LINKS]:
            if is_object(each):
                found |= _links(each)
        return list(found.items())

    def to_json(self) -> CommandDocument:
        """Return the document of the API."""
        return {
            "number": self.number,
            "action": self.action.name,
            "command": self.command,
            "who": self.who,
            "started": self.started.isoformat(),
            "took_s": round(self.took_s, 3),
            "exit_code": self.exit_code,
            "progress": self.progress,
            "document": self.document,
            "error": self.error,
        }

    def check_again(self, argv: list[str], who: str) -> None:
        """Raise R-PAGE-TWICE if a command is this one, which runs or ended well just now."""
        recent = self.ended_at is None or time.monotonic() - self.ended_at < _SAME_S
        if self.argv == argv and recent and self.exit_code in (None, ExitCode.OK):
            raise RunnerError(
                "R-PAGE-TWICE",
                "the same command was started just now",
                why=f"by {self.who}" if self.who != who else "by you",
                fix=f"/jobs/{self.number}",
            )


def _links(document: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, address in _PAGES.items():
        name = document.get(key)
        if isinstance(name, str) and name:
            found[address.format(quote(name, safe=""))] = name
    model, version = document.get("name"), document.get("version")
    if isinstance(model, str) and isinstance(version, int):
        found[f"/models/{quote(model, safe='')}"] = f"{model}@{version}"
    return found


def who_asks(request: Request) -> str:
    """Return a name for a browser, or for programs, that reveals no secret."""
    if request.headers.get("authorization"):
        return "a program"
    name = f"runner-{request.scope['server'][1]}"
    session = request.cookies.get(name) or request.cookies.get(f"__Host-{name}") or ""
    return f"browser {hashlib.sha256(session.encode()).hexdigest()[:4]}"


def shown_argv(source: Source, action: Action, values: Values) -> list[str]:
    """Return the command of an action as a person types it in the folder of the server."""
    words = target_words(source.settings, action.takes, only_flags=True)
    return insert_options(action.argv(values), words)


def where_to_start(source: Source, action: Action) -> str:
    """Say what a shell needs in which somebody starts the command of an action."""
    parts: list[str] = []
    if action.reads_folder:
        parts.append(f"in the folder {Path.cwd()}")
    if os.environ.get("RUNNER_HOME"):
        parts.append(f"with RUNNER_HOME={source.settings.home}")
    return f"Start it {', '.join(parts)}." if parts else ""


async def fill_form(source: Source, action: Action, values: Values) -> dict[str, Any]:
    """Return the values of a form: the command, or why there is none yet."""
    shown = {"title": action.title, "action": action, "values": values, "loss": None}
    shown["where"] = where_to_start(source, action)
    try:
        prepared = await source.work(partial(action.prepare, values))
        argv = shown_argv(source, action, prepared)
    except RunnerError as err:
        return {**shown, "command": "", "problem": err}
    return {**shown, "command": shlex.join(["runner", *argv]), "problem": None}


async def find_loss(source: Source, action: Action, values: Values) -> CommandAnswer | None:
    """Return what an action would destroy, in words; None if nothing, or a value is missing."""
    if action.loss is None:
        return None
    try:
        argv = action.loss_argv(values)
    except RunnerError:
        return None
    found = await source.processes.answer(argv, action.loss.takes)
    if found.error is not None:
        return found
    try:
        text = action.loss.describe(found.document, values)
    except (KeyError, TypeError, ValueError, AttributeError):  # of a newer runner
        text = ""
    return CommandAnswer(text, None, found.messages)


class Commands:
    """The commands of one server."""

    def __init__(self, source: Source, on_change: Callable[[], None]) -> None:
        self._source = source
        self._on_change = on_change
        self.known: Mapping[str, Action] = ACTIONS
        self.jobs: dict[int, StartedCommand] = {}
        self._count = 0
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
            if action.page:
                joint = "&" if "?" in action.page else "?"
                return RedirectResponse(f"{action.page}{joint}{request.url.query}", 303)
            pairs = request.query_params.multi_items()
            values = to_values((name, text) for name, text in pairs if name != "only")
            context = context_of(request) | await fill_form(self._source, action, values)
            if "only" not in request.query_params:
                context["loss"] = await find_loss(self._source, action, values)
            context["back"] = action.target(values)
            return HTMLResponse(render("action.html", None, context))

        async def act(request: Request) -> Response:
            action = self.find(request.path_params["name"])
            values = to_values(await read_pairs(request))
            job = await self.start(action, values, who_asks(request))
            return RedirectResponse(f"/jobs/{job.number}", 303)

        return [Route("/act/{name}", ask), Route("/act/{name}", act, methods=["POST"])]

    @property
    def pages(self) -> tuple[WebPage, ...]:
        """The pages of a command that was started, and of all of them."""

        async def read_all(_: Ask) -> dict[str, Any]:
            return {"title": "Commands", "jobs": list(reversed(self.jobs.values()))}

        async def read_one(ask: Ask) -> dict[str, Any]:
            job = self.job(ask)
            return {"title": job.action.title, "job": job, "after": job.action.target(job.values)}

        return (
            WebPage("/commands", "commands", read_all),
            WebPage("/jobs/{number}", "job", read_one, every_s=0.5),
        )

    def job(self, ask: Ask) -> StartedCommand:
        """Return the command that an address names. Raise RunnerError if it is unknown."""
        number = ask.parts["number"]
        job = self.jobs.get(int(number)) if number.isdecimal() and len(number) < 10 else None
        if job is None:
            raise RunnerError(
                "R-PAGE-UNKNOWN", "this command is not known any more", fix="/commands"
            )
        return job

    async def describe(self, action: Action, values: Values) -> ActionDocument:
        """Return what an action would do. Raise RunnerError for an invalid or missing value."""
        prepared = await self._source.work(partial(action.prepare, values))
        argv = shown_argv(self._source, action, prepared)
        found = await find_loss(self._source, action, prepared)
        return {
            "action": action.name,
            "title": action.title,
            "command": shlex.join(["runner", *argv]),
            "asks": action.asks,
            "loss": str(found.document or "") if found and found.error is None else "",
            "error": found.error if found else None,
        }

    async def start(self, action: Action, values: Values, who: str) -> StartedCommand:
        """Start the command of an action.

        Raises:
            RunnerError: R-PAGE-TWICE, the same command runs, or ended just now; or a value of the
                form is invalid.
        """
        prepared = await self._source.work(partial(action.prepare, values))
        argv = shown_argv(self._source, action, prepared)
        for other in self.jobs.values():
            other.check_again(argv, who)
        words = target_words(self._source.settings, action.takes)
        words += ["-o", "json"] if action.prints_json else []
        executed = insert_options(action.argv(prepared), words)
        check_words(executed)
        self._count += 1
        job = StartedCommand(self._count, action, argv, executed, values, who)
        self.jobs[job.number] = job
        while len(self.jobs) > _MOST_JOBS:
            del self.jobs[min(self.jobs)]
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def close(self) -> None:
        """End the commands that run: first as by Ctrl-C, so that they leave nothing half done."""
        await self._source.processes.close()

    async def _run(self, job: StartedCommand) -> None:
        try:
            async with self._source.processes.turns:
                await self._execute(job)
        except OSError as err:  # no more processes or memory
            job.progress += f"{err}\n"
            job.exit_code = ExitCode.BUG
        finally:
            job.ended_at = time.monotonic()
            job.ended.set()
            self._on_change()

    async def _execute(self, job: StartedCommand) -> None:
        process = await self._source.processes.spawn(job.words)
        stdout, stderr = process.stdout, process.stderr
        if stdout is None or stderr is None:  # never: both are pipes
            raise RuntimeError("a command was started without pipes")

        async def read_progress() -> None:
            decoder = getincrementaldecoder("utf-8")("replace")
            while piece := await stderr.read(_PIECE):
                job.progress = (job.progress + decoder.decode(piece))[-_MAX_OUTPUT:]

        try:
            output, _ = await asyncio.gather(stdout.read(), read_progress())
            job.output = output.decode("utf-8", "replace")
            job.exit_code = await process.wait()
        finally:
            self._source.processes.forget(process)
