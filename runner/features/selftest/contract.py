"""Execute the scenario on an account, and compare the answers of two accounts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from runner.azure.auth.credentials import Connection
from runner.azure.batch.raw import RawResponse, send_raw
from runner.core.progress import OnProgress, Progress
from runner.features.selftest.scenario import CREATED, VM_SIZE, Request, scenario
from runner.protocol.errors import RunnerError
from runner.protocol.results import StageState

_POLL_S = 0.1
_LONGEST_POLL_S = 5.0
_DELETED_WITHIN_S = 600.0
# The headers that clients use; proxies and other versions add more.
_HEADERS = ("dataserviceid", "etag", "last-modified", "location")
_FILE_HEADERS = "ocp-"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a step; `outcome` is why there is no answer, `shape` has types by path."""

    step: str
    outcome: str = ""
    status: int = 0
    code: str = ""
    shape: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = None

    def __str__(self) -> str:
        """Return status and code, or why there is no answer."""
        return self.outcome or f"{self.status} {self.code}".rstrip()


@dataclass(frozen=True, slots=True)
class Compared:
    """Both answers to a step; `differences` is empty if they are equal."""

    step: str
    differences: tuple[str, ...]
    target: Answer
    emulator: Answer


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource that could not be removed, and the command that removes it."""

    what: str
    command: str


class ContractRun:
    """One execution of the scenario, with unique names.

    Args:
        connection: The account.
        title: Its name in progress lines.
        suffix: The end of its names.
        limit_s: Maximum duration of the execution; then the pool's formula removes the node.
        on_progress: Called with every step.
    """

    def __init__(
        self,
        connection: Connection,
        title: str,
        suffix: str,
        limit_s: float,
        on_progress: OnProgress,
    ) -> None:
        self._connection = connection
        self._title = title
        self._on_progress = on_progress
        self._deadline = time.monotonic() + limit_s
        until = datetime.now(UTC) + timedelta(seconds=limit_s)
        self._names = {name: f"selftest-{name}-{suffix}" for _, name, _ in CREATED}
        self._names |= {"until": until.strftime("%Y-%m-%dT%H:%M:%SZ"), "vm_size": VM_SIZE}

    def answers(self, steps: Sequence[Request] | None = None) -> list[Answer]:
        """Return the answers to all steps, in order."""
        steps = scenario() if steps is None else steps
        found: list[Answer] = []
        lost = ""
        self._report("start", "sending the requests", 0, len(steps))
        for number, step in enumerate(steps):
            self._report("progress", step.name, number, len(steps))
            answer = Answer(step.name, f"skipped: {lost}")
            if not (lost and step.on_node):
                answer = self._answer(step)
                if step.on_node and answer.outcome:
                    lost = f"no answer to '{step.name}'"
            found.append(answer)
        self._report("end", "", len(steps), len(steps))
        return found

    def clean_up(self) -> list[Leftover]:
        """Delete the pools and jobs of the scenario. Return those that could not be deleted."""
        self._deadline = max(self._deadline, time.monotonic() + _DELETED_WITHIN_S)
        left = {name: self._leftover(kind, name) for kind, name, _ in CREATED}
        try:
            for _, name, path in CREATED:
                self._send(Request(name, "DELETE", path))
            for _, name, path in CREATED:
                gone = Request(name, "GET", path, until=("status", ("404",)))
                if not self._answer(gone).outcome:
                    del left[name]
        except RunnerError as err:
            self._on_progress(Progress(self._title, "failed", err.what))
        return list(left.values())

    def _leftover(self, kind: str, name: str) -> Leftover:
        found = self._names[name]
        delete = f"az batch {kind} delete --{kind}-id {found} --yes"
        return Leftover(f"{kind} {found}", self._connection.with_account_options(delete))

    def _answer(self, step: Request) -> Answer:
        found = self._send(step)
        wait_s = _POLL_S
        while step.until is not None and _value(found, step.until[0]) not in step.until[1]:
            if time.monotonic() > self._deadline:
                path, values = step.until
                state = f"{path} {_value(found, path)!r}, expected {' or '.join(values)}"
                return Answer(step.name, f"timed out: {state}")
            time.sleep(wait_s)
            wait_s = min(wait_s * 1.5, _LONGEST_POLL_S)
            found = self._send(step)
        for name, path in step.keep.items():
            self._names[name] = str(_value(found, path))
        return to_answer(step.name, found)

    def _send(self, step: Request) -> RawResponse:
        path, body, headers = (
            self._fill_names(part) for part in (step.path, step.body, step.headers)
        )
        return send_raw(self._connection, step.method, path.replace(" ", "%20"), body, headers)

    def _fill_names(self, value: Any) -> Any:
        if isinstance(value, str):
            for name, known in self._names.items():
                value = value.replace("{" + name + "}", known)
            return value
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {name: self._fill_names(item) for name, item in items}
        return [self._fill_names(item) for item in value] if isinstance(value, list) else value  # type: ignore[misc]

    def _report(self, state: StageState, message: str, done: int, total: int) -> None:
        self._on_progress(Progress(self._title, state, message, done, total, "requests"))


def _value(found: RawResponse, path: str) -> Any:
    """Return the value at a path such as `value.0.state` in a body, or `status`, or `etag`."""
    if path == "status":
        return str(found.status)
    if path == "etag":
        return {name.lower(): value for name, value in found.headers.items()}.get("etag", "")
    value: Any = found.body
    for key in path.split("."):
        try:
            value = value[int(key)] if key.isdigit() else value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def to_answer(step: str, found: RawResponse) -> Answer:
    """Return the compared parts of an answer: status, error code, and types by path."""
    names = sorted(name.lower() for name in found.headers)
    kept = (n for n in names if n in _HEADERS or n.startswith(_FILE_HEADERS))
    shape = {f"header {name}": "present" for name in kept}
    return Answer(step, "", found.status, found.code, shape | shape_of(found.body), found.body)


def shape_of(value: Any) -> dict[str, str]:
    """Return the types in a JSON value by path, such as `.value[].id: string`.

    The elements of a list share a path, except pairs of `key` and `value`, as in errors, whose
    paths contain the key.
    """
    kinds: dict[str, set[str]] = {}
    for path, kind in _paths(value, ""):
        kinds.setdefault(path, set()).add(kind)
    return {path: " or ".join(sorted(found)) for path, found in sorted(kinds.items())}


def _paths(value: Any, path: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if set(items) == {"key", "value"}:
            path = f"{path}({items['key']})"
        yield path, "object"
        for name, item in items.items():
            yield from _paths(item, f"{path}.{name}")
    elif isinstance(value, list):
        yield path, "list"
        for item in cast("list[Any]", value):
            yield from _paths(item, f"{path}[]")
    elif value is not None:
        kinds: dict[type, str] = {bool: "boolean", int: "number", float: "number", str: "string"}
        yield path, kinds[type(value)]


def compare(target: Sequence[Answer], emulator: Sequence[Answer]) -> list[Compared]:
    """Return the comparison of two executions of the same steps."""
    return [
        Compared(ours.step, tuple(_differences(ours, theirs)), ours, theirs)
        for ours, theirs in zip(target, emulator, strict=True)
    ]


def _differences(target: Answer, emulator: Answer) -> Iterable[str]:
    if target.outcome or emulator.outcome:
        if target.outcome != emulator.outcome:
            yield f"{target.outcome or target.status}, the emulator {emulator}"
        return
    if (target.status, target.code) != (emulator.status, emulator.code):
        yield f"{target}, the emulator {emulator}"
        return  # the bodies are not comparable
    for path in sorted(target.shape.keys() | emulator.shape.keys()):
        ours, theirs = target.shape.get(path), emulator.shape.get(path)
        if ours != theirs:
            yield f"{path or 'body'}: {ours or 'absent'}, the emulator {theirs or 'absent'}"
