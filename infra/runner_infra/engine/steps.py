"""Events of Pulumi's engine as plain data: changes, drift, warnings and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from pulumi.automation.events import (
    DiagnosticEvent,
    EngineEvent,
    OpType,
    StepEventMetadata,
)

from runner.protocol.errors import RunnerError

# Marks of an encrypted value: sdk/go/common/resource/sig/sig.go (2026-11-28).
_KIND, _SECRET = "4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270"
# Prefixes of types that are not resources in Azure: the stack, its providers and our components.
_LOCAL_TYPES = ("pulumi:", "runner:")
# The engine reports three steps for a replacement; we show one.
_REPLACEMENT_STEPS = ("create-replacement", "delete-replaced")
# The SDK's prefix before the output of a failed command.
STREAM_PREFIX = re.compile(r"^(?:stdout|stderr):\s*")
_WARNING = "warning: "
_MARKUP = re.compile(r"<\{%.*?%\}>")  # colours in messages of events
_DEFAULTS = "__defaults"  # of the engine, in every map of inputs


@dataclass(frozen=True, slots=True)
class Change:
    """A step of the engine; `op` is Pulumi's term: create, update, replace, delete, same.

    `keys` are the changed properties, or those that require a replacement. `reverts_drift` is True
    if the configuration did not change, but the resource in Azure did.
    """

    op: str
    type: str
    name: str
    keys: tuple[str, ...] = ()
    urn: str = ""
    reverts_drift: bool = False


class ChangedProperty(NamedTuple):
    """A property that was changed in Azure, such as `scaleSettings.autoScale.formula`.

    A value is None where the property is absent or secret.
    """

    path: str
    deployed: Any
    now: Any


@dataclass(frozen=True, slots=True)
class ResourceDrift:
    """A resource that was changed or deleted in Azure by other means than a deployment."""

    type: str
    name: str
    urn: str
    deleted: bool
    properties: tuple[ChangedProperty, ...] = ()


@dataclass(frozen=True, slots=True)
class StackPreview:
    """What a deployment would do; `drift` is what others did, empty without a refresh."""

    changes: Sequence[Change]
    drift: Sequence[ResourceDrift] = ()


@dataclass(frozen=True, slots=True)
class EngineStep:
    """An event of the engine.

    `phase` is start, end, failed, warning, error, refresh (a resource was read) or stopping.
    `message` has the details of the others.
    """

    phase: str
    change: Change | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class EngineFault:
    """An error of the engine: the name of its resource in Pulumi, or empty, and the whole text."""

    resource: str
    text: str


OnProgress = Callable[[EngineStep], None]


class Steps:
    """Turns events of the engine into progress, and keeps the changes, the drift and the errors.

    `refused` are the changes whose operation failed.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._changes: dict[str, Change] = {}
        self._drift: dict[str, ResourceDrift] = {}
        self.faults: list[EngineFault] = []
        self.refused: list[Change] = []
        self.program_error: RunnerError | None = None

    @property
    def callbacks(self) -> dict[str, Any]:
        """The arguments of every operation of the SDK that receives events and messages."""
        return {"on_event": self.handle, "on_error": self.handle_line}

    def handle_line(self, line: str) -> None:
        """Handle a line that the CLI prints on stderr, such as a warning about its settings."""
        text = STREAM_PREFIX.sub("", line.strip())
        if text.startswith(_WARNING):
            self._warn(text.removeprefix(_WARNING))

    def handle(self, event: EngineEvent) -> None:
        """Handle an event. The SDK calls this in its own thread."""
        if event.resource_pre_event is not None:
            self._begin(event.resource_pre_event.metadata)
        elif event.res_outputs_event is not None:
            self._end(event.res_outputs_event.metadata)
        elif event.res_op_failed_event is not None:
            change = _change(event.res_op_failed_event.metadata)
            self.refused.append(change)
            self._on_progress(EngineStep("failed", change))
        elif event.diagnostic_event is not None:
            self._diagnose(event.diagnostic_event)
        elif event.policy_event is not None and event.policy_event.enforcement_level != "mandatory":
            found = event.policy_event
            self._warn(f"policy {found.policy_name}: {found.message}")
        elif event.stdout_event is not None:
            self.handle_line(_plain(event.stdout_event.message))

    def report_stopping(self) -> None:
        """Report that Ctrl-C was pressed."""
        text = "stopping after the operations in progress; press Ctrl-C again to exit at once"
        self._on_progress(EngineStep("stopping", None, text))

    def planned(self) -> StackPreview:
        """Return the steps that change a resource, and the drift that a refresh found."""
        changes = [
            replace(change, reverts_drift=self._reverts(change))
            for change in self._changes.values()
            if change.op != "same"
        ]
        return StackPreview(changes, tuple(self._drift.values()))

    def _reverts(self, change: Change) -> bool:
        found = self._drift.get(change.urn)
        if found is None:
            return False
        drifted = {each.path.partition(".")[0] for each in found.properties}
        return found.deleted or (bool(change.keys) and drifted.issuperset(map(_root, change.keys)))

    def _diagnose(self, found: DiagnosticEvent) -> None:
        if found.severity == "warning":
            self._warn(found.message)
        elif found.severity == "error":
            text = _plain(found.message).strip()
            # The engine repeats the last error.
            if not text.startswith("an unhandled error occurred"):
                self.faults.append(EngineFault((found.urn or "").rpartition("::")[2], text))
            self._on_progress(EngineStep("error", None, text.partition("\n")[0]))

    def _warn(self, message: str) -> None:
        self._on_progress(EngineStep("warning", None, " ".join(_plain(message).split())))

    def _begin(self, metadata: StepEventMetadata) -> None:
        change = _change(metadata)
        if not is_in_azure(metadata.type) or change.op in _REPLACEMENT_STEPS:
            return
        if metadata.op is OpType.REFRESH:
            return
        self._changes[metadata.urn] = change
        self._on_progress(EngineStep("start", change))

    def _end(self, metadata: StepEventMetadata) -> None:
        if not is_in_azure(metadata.type):
            return
        if metadata.op is OpType.REFRESH:
            if found := _drift(metadata):
                self._drift[metadata.urn] = found
            self._on_progress(EngineStep("refresh", _change(metadata)))
            return
        self._on_progress(EngineStep("end", _change(metadata)))


def is_in_azure(kind: str) -> bool:
    """Return True for the type of a resource in Azure, False for one of the engine or of ours."""
    return not kind.startswith(_LOCAL_TYPES)


def is_secret(value: Any) -> bool:
    """Return True for an encrypted value in the state."""
    if not isinstance(value, dict):
        return False
    return cast("dict[str, Any]", value).get(_KIND) == _SECRET


def _plain(message: str) -> str:
    return _MARKUP.sub("", message)


def _root(path: str) -> str:
    return re.split(r"[.\[]", path)[0]


def _change(metadata: StepEventMetadata) -> Change:
    keys = metadata.keys or metadata.diffs or ()
    return Change(
        op=metadata.op.value,
        type=metadata.type,
        name=metadata.urn.rpartition("::")[2],
        keys=tuple(keys),
        urn=metadata.urn,
    )


def _drift(metadata: StepEventMetadata) -> ResourceDrift | None:
    """Return what a refresh found, or None if the resource is as it was deployed."""
    old, new = metadata.old, metadata.new
    kind, name = metadata.type, metadata.urn.rpartition("::")[2]
    if old is None or not old.id:
        return None
    if new is None or not new.id:
        return ResourceDrift(kind, name, metadata.urn, deleted=True)
    found = list(_differences(old.inputs or {}, new.inputs or {}, ""))
    known = {_root(each.path) for each in found}
    # The provider also sees changes of secrets.
    found += [
        ChangedProperty(path, None, None)
        for path in sorted(metadata.diffs or ())
        if _root(path) not in known
    ]
    drifted = ResourceDrift(kind, name, metadata.urn, deleted=False, properties=tuple(found))
    return drifted if found else None


def _differences(old: Any, new: Any, path: str) -> Iterator[ChangedProperty]:
    """Yield the differences of inputs; lists are compared as a whole, secrets are not compared."""
    if old == new or is_secret(old) or is_secret(new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
        for key in sorted({*before, *after} - {_DEFAULTS}):
            at = f"{path}.{key}" if path else key
            yield from _differences(before.get(key), after.get(key), at)
    else:
        yield ChangedProperty(path, old, new)
