"""Processes of `runner`: commands that a reader has started, and those that only read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from typing_extensions import TypedDict

from runner.core.settings import Settings
from runner.flows.child_python import command_of
from runner.page.forms import Takes
from runner.page.plain_text import plain
from runner.protocol.errors import RunnerError

_AT_ONCE = 4  # a command needs a process with 80 MB
_END_S = 0.7
_MAX_WORD = 100_000  # Linux: 131,072 bytes
_MAX_WORDS = (
    1_000_000  # Linux: a quarter of the stack, which is usually 8 MiB, with the environment
)
_POINTER = 8


class ErrorDocument(TypedDict):
    """An error as `-o json` prints it."""

    code: str
    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What a command printed that only reads: its document or its error, and its messages."""

    document: Any
    error: ErrorDocument | None
    messages: str

    def checked(self) -> Any:
        """Return its document. Raise RunnerError for its error."""
        if self.error is None:
            return self.document
        code, what = self.error["code"] or "R-PAGE-COMMAND", self.error["what"]
        raise RunnerError(code, what, why=self.error["why"], fix=self.error["fix"])


def parse_document(output: str) -> Any:
    """Return what a command printed as JSON, or None."""
    try:
        return json.loads(output)
    except (ValueError, RecursionError):
        return None


def find_error(document: Any) -> ErrorDocument | None:
    """Return the error of a document, or None if it is none."""
    error: Any = cast("dict[str, Any]", document).get("error") if is_object(document) else None
    if not is_object(error):
        return None
    names = ("code", "what", "why", "fix")
    return cast("ErrorDocument", {name: str(error.get(name) or "") for name in names})


def is_object(document: Any) -> bool:
    """Return True for a JSON object."""
    return isinstance(document, dict)


def target_words(settings: Settings, takes: Takes, *, only_flags: bool = False) -> list[str]:
    """Return the options with which a command has the target of this server.

    With `only_flags`, those that a person needs in the same folder: the flags of `runner ui`.
    """
    if not takes:
        return []
    values = {"target": settings.target.name if takes == "target" else None}
    if settings.target.has_stacks:
        values |= {"stack": settings.stack, "team": settings.team if takes == "target" else None}
    return [
        word
        for name, value in values.items()
        if value and not (only_flags and settings.origins.get(name) != f"--{name}")
        for word in (f"--{name}", value)
    ]


def insert_options(argv: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return a command with more options, before `--`."""
    at = argv.index("--") if "--" in argv else len(argv)
    return [*argv[:at], *words, *argv[at:]]


def check_words(words: Sequence[str]) -> None:
    """Raise RunnerError if execve(2) would refuse the words of a command."""
    for word in words:
        try:
            is_valid = "\0" not in word and len(os.fsencode(word)) <= _MAX_WORD
        except UnicodeEncodeError:
            is_valid = False
        if not is_valid:
            raise RunnerError(
                "R-PAGE-QUERY",
                f"no command can have the value {word[:40]!a}",
                why=f"a value is Unicode without null characters, of at most {_MAX_WORD} bytes",
                fix="shorten or correct it",
            )
    if sum(map(len, words)) + len(words) * _POINTER > _MAX_WORDS:
        raise RunnerError(
            "R-PAGE-QUERY", "the values are too long for one command", fix="send fewer of them"
        )


class Processes:
    """The processes of one server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.turns = asyncio.Semaphore(_AT_ONCE)
        self._running: set[asyncio.subprocess.Process] = set()

    async def spawn(self, argv: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a command; call `forget` when it has ended."""
        check_words(argv)
        process = await asyncio.create_subprocess_exec(
            *command_of("runner", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
            start_new_session=True,  # Ctrl-C of the server is none of the command
        )
        self._running.add(process)
        return process

    def forget(self, process: asyncio.subprocess.Process) -> None:
        """Forget a process that has ended; kill it if its reader has left before."""
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
        self._running.discard(process)

    async def answer(self, argv: Sequence[str], takes: Takes = "target") -> CommandAnswer:
        """Return what a command prints that changes nothing."""
        words = [*target_words(self.settings, takes), "-o", "json"]
        async with self.turns:
            process = await self.spawn(insert_options(argv, words))
            try:
                output, messages = await process.communicate()
            finally:
                self.forget(process)
        document = parse_document(output.decode("utf-8", "replace"))
        text = plain(messages.decode("utf-8", "replace")).strip()
        error = find_error(document)
        if error is None and process.returncode and document is None:
            error = ErrorDocument(code="", what=text or "the command failed", why="", fix="")
        return CommandAnswer(document, error, text)

    async def close(self) -> None:
        """End the commands that run: first as by Ctrl-C, so that they leave nothing half done."""
        running = [each for each in self._running if each.returncode is None]
        for process in running:
            _signal(process, signal.SIGINT)
        waiting = [asyncio.ensure_future(each.wait()) for each in running]
        if waiting:
            await asyncio.wait(waiting, timeout=_END_S)
        for process in running:
            if process.returncode is None:
                _signal(process, signal.SIGKILL)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a command and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
