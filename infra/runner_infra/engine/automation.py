"""Drive Pulumi through its Automation API: preview, deploy and destroy, with events as plain
data.

The first Ctrl-C reaches the engine through the terminal, which then gets time to stop.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import pulumi
from pulumi import automation as auto
from pulumi.automation.events import DiagnosticEvent, EngineEvent, StepEventMetadata

from runner.protocol.errors import RunnerError
from runner_infra.engine.cli_archive import install_archive
from runner_infra.engine.state_folder import is_locked, remove_stale_locks, state_backend
from runner_infra.engine.unfinished import HALF_WRITTEN, import_unfinished, read_state
from runner_infra.program import program

_T = TypeVar("_T")
_POLL_S = 0.2


def run_despite_interrupt(work: Callable[[], _T], on_interrupt: Callable[[], None]) -> _T:
    """Return the result of `work`. The first Ctrl-C does not end it.

    The engine is in this process group, so a terminal's Ctrl-C reaches it. It then finishes the
    operations in progress and saves the state. A second Ctrl-C does not wait for that.

    Args:
        work: runs in a thread.
        on_interrupt: called after the first Ctrl-C.

    Raises:
        KeyboardInterrupt: `work` failed after a Ctrl-C, or Ctrl-C was pressed twice.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    # An event, because an interrupted join treats the thread as ended (Python 3.11).
    begin, ended = threading.Event(), threading.Event()

    def run() -> None:
        begin.wait()
        try:
            results.append(work())
        except BaseException as err:  # noqa: BLE001  raised in the waiting thread
            errors.append(err)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    interrupted = False
    while True:
        try:  # a Ctrl-C can arrive between two waits
            begin.set()
            while not ended.wait(_POLL_S):
                pass
            break
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            on_interrupt()
    if results:
        return results[0]
    raise KeyboardInterrupt if interrupted else errors[0]


_STACK_TYPE = "pulumi:pulumi:Stack"
# Marks of an encrypted value: sdk/go/common/resource/sig/sig.go (2026-11-28).
_KIND, _SECRET = "4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270"
_POOL_TYPE = "azure-native:batch:Pool"
# Batch's answer to an update with a property that can only be set when a pool is created.
_FIXED_PROPERTY = "PropertyCannotBeUpdated"
# Prefixes of types that are not resources in Azure: the stack, its providers and our components.
_LOCAL_TYPES = ("pulumi:", "runner:")
# The engine reports three steps for a replacement; we show one.
_REPLACEMENT_STEPS = ("create-replacement", "delete-replaced")
# The SDK's prefix before the output of a failed command.
_STREAM_PREFIX = re.compile(r"^(?:stdout|stderr):\s*")
_WARNING = "warning: "
_MARKUP = re.compile(r"<\{%.*?%\}>")  # colours in messages of events
_URN_NAME = re.compile(r"urn:pulumi:[^\s\"]*::([\w.-]+)")
_PASSPHRASE = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


@dataclass(frozen=True, slots=True)
class Change:
    """A step of the engine; `op` is Pulumi's term: create, update, replace, delete, same.

    `keys` are the changed properties, or those that require a replacement.
    """

    op: str
    type: str
    name: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineStep:
    """An event of the engine; `phase` is start, end, failed, warning, error or stopping.

    `message` has the details of the last three.
    """

    phase: str
    change: Change | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class PulumiStack:
    """A stack of the project in `folder`, with the CLI and the variables for its state.

    `backend` is the URL of the state, or None if only Pulumi knows it.
    """

    folder: Path
    name: str
    cli: auto.PulumiCommand
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Deployed:
    """A resource in the state; `id` is its ARM ID."""

    type: str
    name: str
    id: str
    protect: bool
    urn: str = ""


OnProgress = Callable[[EngineStep], None]


def find_cli(root: Path) -> auto.PulumiCommand | None:
    """Return the Pulumi CLI on PATH, else the one installed under `root`, else None."""
    for place in (None, str(root)):
        try:
            return auto.PulumiCommand(root=place)
        except Exception:  # noqa: BLE001, S112  the SDK documents no error for "not found"
            continue
    return None


def install_cli(root: Path) -> auto.PulumiCommand:
    """Install the pinned version of the Pulumi CLI into `root`.

    Raises:
        RunnerError: R-PULUMI-INSTALL.
    """
    install_archive(root)
    try:
        return auto.PulumiCommand(root=str(root))
    except Exception as err:
        raise RunnerError(
            "R-PULUMI-INSTALL",
            f"the Pulumi CLI in {root} does not run",
            why=str(err).strip().splitlines()[-1] if str(err).strip() else type(err).__name__,
            fix="install it manually (https://www.pulumi.com/docs/install), then try again",
        ) from err


def state_settings(home: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables for Pulumi's state.

    They are empty if Pulumi is signed in to a backend or PULUMI_BACKEND_URL is set. Otherwise the
    state is a folder of `home`. Its secrets are encrypted with a random passphrase in a file that
    only its owner can read, unless `env` has a passphrase.

    Args:
        home: RUNNER_HOME.
        env: the variables of the command.
    """
    backend = state_backend(home, env)
    if backend is None or env.get("PULUMI_BACKEND_URL"):
        return {}
    folder = home / "pulumi"
    folder.mkdir(parents=True, exist_ok=True)
    passphrase = folder / "passphrase"
    if not passphrase.exists():
        temporary = passphrase.with_suffix(f".{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(secrets.token_urlsafe(32), encoding="utf-8")
        # The first process to link wins, because a passphrase in use must not be overwritten.
        try:
            os.link(temporary, passphrase)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    if any(env.get(name) for name in _PASSPHRASE):
        return {"PULUMI_BACKEND_URL": backend}
    return {
        "PULUMI_BACKEND_URL": backend,
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase),
    }


def preview(
    stack: PulumiStack, on_progress: OnProgress, *, replace: Sequence[str] = ()
) -> list[Change]:
    """Return the changes that `up` would make, in the engine's order.

    Args:
        stack: the stack.
        on_progress: called with every event.
        replace: URNs of resources to delete and create again.

    Raises:
        RunnerError: the engine failed.
    """
    steps = _Steps(on_progress)
    with _engine_errors("previewing", stack, steps):
        opened = _select_stack(stack, steps)
        run_despite_interrupt(
            lambda: opened.preview(
                **steps.callbacks, suppress_outputs=True, replace=list(replace) or None
            ),
            steps.report_stopping,
        )
    return steps.planned()


def refresh(stack: PulumiStack, on_progress: OnProgress) -> None:
    """Update the state from Azure, so that the next deployment creates deleted resources again."""
    steps = _Steps(on_progress)
    remove_stale_locks(stack.backend, stack.name)
    with _engine_errors("refreshing", stack, steps):
        opened = _select_stack(stack, steps)
        import_unfinished(opened)
        run_despite_interrupt(
            lambda: opened.refresh(**steps.callbacks, suppress_outputs=True, show_secrets=False),
            steps.report_stopping,
        )


def up(
    stack: PulumiStack, on_progress: OnProgress, *, replace: Sequence[str] = ()
) -> dict[str, Any]:
    """Deploy the stack and return its outputs without secrets. See `preview`."""
    steps = _Steps(on_progress)
    remove_stale_locks(stack.backend, stack.name)
    with _engine_errors("deploying", stack, steps):
        opened = _select_stack(stack, steps)
        import_unfinished(opened)
        result = run_despite_interrupt(
            lambda: opened.up(**steps.callbacks, show_secrets=False, replace=list(replace) or None),
            steps.report_stopping,
        )
    return {key: found.value for key, found in result.outputs.items() if not found.secret}


def down(stack: PulumiStack, on_progress: OnProgress, *, everything: bool) -> None:
    """Destroy the resources that are not protected; `everything` removes the protection first.

    Raises:
        RunnerError: the engine failed.
    """
    steps = _Steps(on_progress)
    remove_stale_locks(stack.backend, stack.name)
    with _engine_errors("destroying", stack, steps):
        opened = _select_stack(stack, steps, create=False)
        import_unfinished(opened)
        if everything:
            _unprotect(opened)
        run_despite_interrupt(
            lambda: opened.destroy(
                **steps.callbacks, exclude_protected=not everything, show_secrets=False
            ),
            steps.report_stopping,
        )


def deployed(stack: PulumiStack) -> list[Deployed]:
    """Return the resources in the stack's state; empty if it was never deployed."""
    steps = _Steps(lambda _: None)
    try:
        with _engine_errors("reading the state of", stack, steps):
            state = read_state(lambda: _workspace(stack).export_stack(stack.name))
    except auto.errors.StackNotFoundError:
        return []
    found = [_deployed(each) for each in _resources(state) if _is_in_azure(each["type"])]
    return [each for each in found if each.id]


def check_passphrase(stack: PulumiStack) -> None:
    """Raise RunnerError if the secrets of the state cannot be decrypted."""
    steps = _Steps(lambda _: None)
    with _engine_errors("decrypting the state of", stack, steps):
        workspace = _workspace(stack)
        read_state(lambda: auto.LocalWorkspace.export_stack(workspace, stack.name))


def outputs(stack: PulumiStack) -> dict[str, Any]:
    """Return the outputs of the last deployment, from any machine, without secrets."""
    steps = _Steps(lambda _: None)
    with _engine_errors("reading the outputs of", stack, steps):
        found = read_state(lambda: _workspace(stack).stack_outputs(stack.name))
    return {key: each.value for key, each in found.items() if not each.secret}


def _unprotect(opened: auto.Stack) -> None:
    state = read_state(opened.export_stack)
    for resource in _resources(state):
        resource["protect"] = False
    opened.import_stack(state)


def _resources(state: auto.Deployment) -> list[dict[str, Any]]:
    found = (state.deployment or {}).get("resources", [])
    return [resource for resource in found if resource["type"] != _STACK_TYPE]


def _deployed(resource: Mapping[str, Any]) -> Deployed:
    outputs: Mapping[str, Any] = resource.get("outputs", {})
    return Deployed(
        type=resource["type"],
        name=str(outputs.get("name") or resource["urn"].rpartition("::")[2]),
        id=str(resource.get("id", "")),
        protect=bool(resource.get("protect")),
        urn=resource["urn"],
    )


def _program(folder: Path, steps: _Steps) -> Callable[[], None]:
    """Return the program. It runs in this process, and stores a RunnerError in `steps`."""

    def run() -> None:
        try:
            program(folder)
        except pulumi.RunError as err:
            if isinstance(err.__cause__, RunnerError):
                steps.program_error = err.__cause__
            raise

    return run


def _is_in_azure(kind: str) -> bool:
    return not kind.startswith(_LOCAL_TYPES)


def _select_stack(stack: PulumiStack, steps: _Steps, *, create: bool = True) -> auto.Stack:
    """Return the stack. Without `create`, an unknown name creates no state."""
    workspace = _workspace(stack, _program(stack.folder, steps))
    select = auto.Stack.create_or_select if create else auto.Stack.select
    return read_state(lambda: select(stack.name, workspace))


def _workspace(
    stack: PulumiStack, program: Callable[[], None] | None = None
) -> auto.LocalWorkspace:
    return _Workspace(
        work_dir=str(stack.folder),
        program=program,
        pulumi_command=stack.cli,
        env_vars={"PULUMI_SKIP_UPDATE_CHECK": "true", **stack.variables},
    )


class _Workspace(auto.LocalWorkspace):
    """Reads the state with its secrets encrypted.

    Each command of Pulumi that decrypts them derives the key from the passphrase again, which takes
    0.2 s of processor time. The SDK would run two of them to read the outputs.
    """

    def export_stack(self, stack_name: str) -> auto.Deployment:
        """Return the state of the stack."""
        words = ["stack", "export", "--stack", stack_name]
        shown = self.pulumi_command.run(words, self.work_dir, self.env_vars)
        state = json.loads(shown.stdout)
        return auto.Deployment(version=state.get("version"), deployment=state.get("deployment"))

    def stack_outputs(self, stack_name: str) -> auto.OutputMap:
        """Return the outputs of the last deployment; a secret has no value."""
        state = self.export_stack(stack_name).deployment or {}
        stacks = [each for each in state.get("resources", []) if each["type"] == _STACK_TYPE]
        outputs: dict[str, Any] = stacks[0].get("outputs", {}) if stacks else {}
        return {
            name: auto.OutputValue(None if _is_secret(value) else value, _is_secret(value))
            for name, value in outputs.items()
        }


def _is_secret(value: Any) -> bool:
    """Return True for an encrypted value in the state."""
    if not isinstance(value, dict):
        return False
    return cast("dict[str, Any]", value).get(_KIND) == _SECRET


class _Steps:
    """Turns events of the engine into progress, and keeps the changes and errors.

    `refused` are the changes whose operation failed.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._changes: dict[str, Change] = {}
        self.errors: list[str] = []
        self.refused: list[Change] = []
        self.program_error: RunnerError | None = None

    @property
    def callbacks(self) -> dict[str, Any]:
        """The arguments of every operation of the SDK that receives events and messages."""
        return {"on_event": self.handle, "on_error": self.handle_line}

    def handle_line(self, line: str) -> None:
        """Handle a line that the CLI prints on stderr, such as a warning about its settings."""
        text = _STREAM_PREFIX.sub("", line.strip())
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

    def planned(self) -> list[Change]:
        """Return the steps that change a resource."""
        return [change for change in self._changes.values() if change.op != "same"]

    def _diagnose(self, found: DiagnosticEvent) -> None:
        if found.severity == "warning":
            self._warn(found.message)
        elif found.severity == "error":
            # Keep the first line of a Python trace. The engine repeats the last error.
            message = found.message.strip().partition("\n")[0]
            if not message.startswith("an unhandled error occurred"):
                self.errors.append(message)
            self._on_progress(EngineStep("error", None, message))

    def _warn(self, message: str) -> None:
        self._on_progress(EngineStep("warning", None, " ".join(_plain(message).split())))

    def _begin(self, metadata: StepEventMetadata) -> None:
        change = _change(metadata)
        if _is_in_azure(metadata.type) and change.op not in _REPLACEMENT_STEPS:
            self._changes[metadata.urn] = change
            self._on_progress(EngineStep("start", change))

    def _end(self, metadata: StepEventMetadata) -> None:
        if _is_in_azure(metadata.type):
            self._on_progress(EngineStep("end", _change(metadata)))


def _plain(message: str) -> str:
    return _MARKUP.sub("", message)


def _change(metadata: StepEventMetadata) -> Change:
    keys = metadata.keys or metadata.diffs or ()
    return Change(
        op=metadata.op.value,
        type=metadata.type,
        name=metadata.urn.rpartition("::")[2],
        keys=tuple(keys),
    )


@contextmanager
def _engine_errors(doing: str, stack: PulumiStack, steps: _Steps) -> Generator[None]:
    """Raise errors of the engine as RunnerError: the one that the program raised, if any."""
    try:
        yield
    except (auto.errors.ConcurrentUpdateError, auto.errors.StackAlreadyExistsError) as err:
        raise _locked(doing) from err
    except auto.errors.StackNotFoundError:
        raise
    except auto.errors.CommandError as err:
        if steps.program_error is not None:
            raise steps.program_error from err
        lines = steps.errors or _error_lines(str(err))
        if any("passphrase" in line for line in lines):
            raise _wrong_passphrase(doing, lines) from err
        if any(HALF_WRITTEN in line for line in lines):
            # The engine that holds the lock writes the file, and its backup would be of no use.
            is_written = is_locked(stack.backend, stack.name)
            raise (_locked(doing) if is_written else _incomplete_state(doing, lines)) from err
        pools = [change for change in steps.refused if change.type == _POOL_TYPE]
        if pools and any(_FIXED_PROPERTY in line for line in lines):
            raise _refused_pools(stack.name, pools, lines) from err
        if any("marked for protection" in line or "unable to replace" in line for line in lines):
            raise _protected(stack.name, lines) from err
        raise RunnerError(
            "R-PULUMI-FAILED",
            f"{doing} the stack failed",
            why="; ".join(lines[:3]) or "the engine gave no reason",
            fix="correct the cause, then run the command again; resources created so far are kept",
        ) from err


def _locked(doing: str) -> RunnerError:
    return RunnerError(
        "R-PULUMI-LOCKED",
        f"{doing} the stack failed: another deployment is in progress",
        why="the state is locked until that deployment ends",
        fix="wait for its end; if it was killed on another machine, run `pulumi cancel` there",
    )


def _incomplete_state(doing: str, lines: Sequence[str]) -> RunnerError:
    return RunnerError(
        "R-PULUMI-STATE",
        f"{doing} the stack failed: cannot read its state",
        why=f"{lines[0]}: the file is incomplete, as after a full disk or a killed engine",
        fix="copy the backup .pulumi/stacks/<project>/<stack>.json.bak over the .json file, then "
        "run the command again, which imports newer resources from Azure",
    )


def _wrong_passphrase(doing: str, lines: Sequence[str]) -> RunnerError:
    return RunnerError(
        "R-PULUMI-PASSPHRASE",
        f"{doing} the stack failed: its secrets are encrypted with another passphrase",
        why=f"{lines[0]}: encryptionsalt in the stack's file belongs to the passphrase of its "
        "first deployment; this machine's is in RUNNER_HOME/pulumi/passphrase",
        fix="deploy from that machine, copy its RUNNER_HOME/pulumi here, or set "
        "PULUMI_CONFIG_PASSPHRASE; if nothing was deployed, remove encryptionsalt",
    )


def _refused_pools(stack: str, pools: Sequence[Change], lines: Sequence[str]) -> RunnerError:
    """Build the error for an update that Batch refuses, although the provider can send it."""
    ids = list(dict.fromkeys(change.name.removeprefix("pool-") for change in pools))
    listed = ",".join(ids)
    return RunnerError(
        "R-POOL-UPDATE",
        f"Azure refuses to update pool {' and '.join(map(repr, ids))} in place",
        why=next(line for line in lines if _FIXED_PROPERTY in line),
        fix=f"`runner up --stack {stack} --replace {listed}` deletes it and creates it again; its "
        "tasks then start again from their last checkpoint",
    )


def _protected(stack: str, lines: Sequence[str]) -> RunnerError:
    """Build the error for a change that replaces protected resources, which would lose data."""
    names = dict.fromkeys(_URN_NAME.findall(" ".join(lines)))
    return RunnerError(
        "R-PULUMI-PROTECTED",
        "the change would delete the storage of runs, models and data",
        why=f"it replaces {', '.join(names) or lines[0]}",
        fix="revert the change of region, subscription or storage; or use another stack (--stack); "
        f"or run `runner down --stack {stack} --everything` first",
    )


def _error_lines(text: str) -> list[str]:
    """Return the lines that the engine marked as errors, else its last line."""
    lines = [_STREAM_PREFIX.sub("", line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("code:")]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error:")]
    return errors or lines[-1:]
