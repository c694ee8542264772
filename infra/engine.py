"""Drives Pulumi through its Automation API; what happens comes out as plain data."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
from pulumi import automation as auto
from pulumi.automation.events import EngineEvent, StepEventMetadata

from infra.interrupts import wait_out
from infra.program import program
from infra.state_folder import release_dead, state_backend
from infra.state_reads import HALF_WRITTEN, read_whole
from infra.unfinished import look_for_unfinished
from runner.core.errors import ExitCode, RunnerError

PROJECT = "runner"
_STACK_TYPE = "pulumi:pulumi:Stack"
# The stack, its providers, and components: the engine's own, nothing that is in Azure.
_NOT_IN_AZURE = ("pulumi:", "runner:")
# A replacement is one change for people; the engine makes three steps of it.
_PARTS_OF_REPLACE = ("create-replacement", "delete-replaced")
# What the SDK puts before the text of a command that failed.
_STREAM = re.compile(r"^(?:stdout|stderr):\s*")
_URN_NAME = re.compile(r"urn:pulumi:[^\s\"]*::([\w.-]+)")
_PASSPHRASE = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


@dataclass(frozen=True, slots=True)
class Change:
    """One step of the engine: `op` is Pulumi's word (create, update, replace, delete, same…).

    `keys` are the properties that changed; for a replacement those that force it.
    """

    op: str
    type: str
    name: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """`phase` is start, end, failed, error or stopping; `message` says more of the last two."""

    phase: str
    change: Change | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Environment:
    """One stack of the project in `folder`, with its CLI and the settings of its state.

    `backend` is where the state is, as far as that can be told without Pulumi.
    """

    folder: Path
    stack: str
    cli: auto.PulumiCommand
    state: Mapping[str, str] = field(default_factory=dict[str, str])
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Deployed:
    """One resource of the state; `id` is its ARM id."""

    type: str
    name: str
    id: str
    protect: bool


OnProgress = Callable[[Progress], None]


def find_cli(root: Path) -> auto.PulumiCommand | None:
    """The CLI on PATH, or the one installed under `root` on consent; None when there is neither."""
    for place in (None, str(root)):
        try:
            return auto.PulumiCommand(root=place)
        except Exception:  # noqa: BLE001, S112  the SDK raises what it likes for "not there"
            continue
    return None


def install_cli(root: Path) -> auto.PulumiCommand:
    """Run Pulumi's own install script into `root`. Raises RunnerError when it cannot."""
    try:
        return auto.PulumiCommand.install(root=str(root))
    except Exception as err:
        raise RunnerError(
            "R-PULUMI-INSTALL",
            "could not install the Pulumi CLI",
            why=str(err).strip().splitlines()[-1] if str(err).strip() else type(err).__name__,
            fix="install it by hand (https://www.pulumi.com/docs/install), then run this again",
            exit_code=ExitCode.PREFLIGHT,
        ) from err


def state_settings(home: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """Where state is kept: wherever Pulumi is signed in, else in a folder of `home`.

    The folder's secrets are encrypted with a passphrase made once, readable by its owner only,
    unless the environment has one.
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
        # The first to link wins: a passphrase that is in use must never be written over.
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


def preview(environment: Environment, on_progress: OnProgress) -> list[Change]:
    """What `up` would do, in the engine's order; unchanged resources are left out."""
    steps = _Steps(on_progress)
    with _engine_errors("previewing", steps):
        stack = _select(environment, steps)
        wait_out(lambda: stack.preview(on_event=steps.see, suppress_outputs=True), steps.stopping)
    return steps.planned()


def up(environment: Environment, on_progress: OnProgress) -> dict[str, Any]:
    """Create or change everything; returns the stack's outputs, secrets left out."""
    steps = _Steps(on_progress)
    release_dead(environment.backend, environment.stack)
    with _engine_errors("deploying", steps):
        stack = _select(environment, steps)
        look_for_unfinished(stack)
        result = wait_out(lambda: stack.up(on_event=steps.see, show_secrets=False), steps.stopping)
    return {key: found.value for key, found in result.outputs.items() if not found.secret}


def down(environment: Environment, on_progress: OnProgress, *, everything: bool) -> None:
    """Destroy what is not protected; with `everything`, lift the protection first."""
    steps = _Steps(on_progress)
    release_dead(environment.backend, environment.stack)
    with _engine_errors("destroying", steps):
        stack = _select(environment, steps, create=False)
        look_for_unfinished(stack)
        if everything:
            _unprotect(stack)
        wait_out(
            lambda: stack.destroy(on_event=steps.see, exclude_protected=not everything),
            steps.stopping,
        )


def deployed(environment: Environment) -> list[Deployed]:
    """What the stack's state holds; empty when it was never deployed."""
    steps = _Steps(lambda _: None)
    try:
        with _engine_errors("reading the state of", steps):
            state = read_whole(_select(environment, steps, create=False).export_stack)
    except auto.errors.StackNotFoundError:
        return []
    found = [_deployed(each) for each in _resources(state) if _is_in_azure(each["type"])]
    return [each for each in found if each.id]


def outputs(environment: Environment) -> dict[str, Any]:
    """The outputs of the last deployment, wherever it was made; secrets are left out."""
    steps = _Steps(lambda _: None)
    with _engine_errors("reading the outputs of", steps):
        found = read_whole(_select(environment, steps, create=False).outputs)
    return {key: each.value for key, each in found.items() if not each.secret}


def _unprotect(stack: auto.Stack) -> None:
    state = read_whole(stack.export_stack)
    for resource in _resources(state):
        resource["protect"] = False
    stack.import_stack(state)


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
    )


def _program(folder: Path, steps: _Steps) -> Callable[[], None]:
    """The program runs in this process: an error of ours is kept as it was raised."""

    def run() -> None:
        try:
            program(folder)
        except pulumi.RunError as err:
            if isinstance(err.__cause__, RunnerError):
                steps.own_error = err.__cause__
            raise

    return run


def _is_in_azure(kind: str) -> bool:
    return not kind.startswith(_NOT_IN_AZURE)


def _select(environment: Environment, steps: _Steps, *, create: bool = True) -> auto.Stack:
    """The stack; without `create` a stack of another name leaves no trace of itself."""
    select = auto.create_or_select_stack if create else auto.select_stack
    return read_whole(
        lambda: select(
            stack_name=environment.stack,
            project_name=PROJECT,
            program=_program(environment.folder, steps),
            opts=auto.LocalWorkspaceOptions(
                work_dir=str(environment.folder),
                pulumi_command=environment.cli,
                env_vars={"PULUMI_SKIP_UPDATE_CHECK": "true", **environment.state},
            ),
        )
    )


class _Steps:
    """Turns engine events into progress, and keeps the steps and the errors."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._changes: dict[str, Change] = {}
        self.errors: list[str] = []
        self.own_error: RunnerError | None = None

    def see(self, event: EngineEvent) -> None:
        """Called by the SDK, in a thread of its own."""
        if event.resource_pre_event is not None:
            self._begin(event.resource_pre_event.metadata)
        elif event.res_outputs_event is not None:
            self._end(event.res_outputs_event.metadata)
        elif event.res_op_failed_event is not None:
            change = _change(event.res_op_failed_event.metadata)
            self._on_progress(Progress("failed", change))
        elif event.diagnostic_event is not None and event.diagnostic_event.severity == "error":
            # A trace of Python goes on below its first line; the engine repeats the last error.
            message = event.diagnostic_event.message.strip().partition("\n")[0]
            if not message.startswith("an unhandled error occurred"):
                self.errors.append(message)
            self._on_progress(Progress("error", None, message))

    def stopping(self) -> None:
        """Somebody pressed Ctrl-C."""
        text = "stopping when what is begun is done; Ctrl-C again leaves at once"
        self._on_progress(Progress("stopping", None, text))

    def planned(self) -> list[Change]:
        """Steps that change something."""
        return [change for change in self._changes.values() if change.op != "same"]

    def _begin(self, metadata: StepEventMetadata) -> None:
        change = _change(metadata)
        if _is_in_azure(metadata.type) and change.op not in _PARTS_OF_REPLACE:
            self._changes[metadata.urn] = change
            self._on_progress(Progress("start", change))

    def _end(self, metadata: StepEventMetadata) -> None:
        if _is_in_azure(metadata.type):
            self._on_progress(Progress("end", _change(metadata)))


def _change(metadata: StepEventMetadata) -> Change:
    keys = metadata.keys or metadata.diffs or ()
    return Change(
        op=metadata.op.value,
        type=metadata.type,
        name=metadata.urn.rpartition("::")[2],
        keys=tuple(keys),
    )


@contextmanager
def _engine_errors(doing: str, steps: _Steps) -> Generator[None]:
    """An error of the engine as people read it: our own first, else what it printed last."""
    try:
        yield
    except (auto.errors.ConcurrentUpdateError, auto.errors.StackAlreadyExistsError) as err:
        raise RunnerError(
            "R-PULUMI-LOCKED",
            f"{doing} the stack: another deployment holds it",
            why="its state is locked until that deployment ends",
            fix="wait for it; when it was killed on another machine: pulumi cancel, there",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
    except auto.errors.StackNotFoundError:
        raise
    except auto.errors.CommandError as err:
        if steps.own_error is not None:
            raise steps.own_error from err
        said = steps.errors or _error_lines(str(err))
        if any("passphrase" in line for line in said):
            raise _wrong_passphrase(doing, said) from err
        if any(HALF_WRITTEN in line for line in said):
            raise _cut_off(doing, said) from err
        if any("marked for protection" in line or "unable to replace" in line for line in said):
            raise _protected(doing, said) from err
        raise RunnerError(
            "R-PULUMI-FAILED",
            f"{doing} the stack failed",
            why="; ".join(said[:3]) or "the engine gave no reason",
            fix="correct it and run the same command again: what was made is kept",
            exit_code=ExitCode.PREFLIGHT,
        ) from err


def _cut_off(doing: str, said: Sequence[str]) -> RunnerError:
    return RunnerError(
        "R-PULUMI-STATE",
        f"{doing} the stack: its state cannot be read",
        why=f"{said[0]}: it was cut off, as by a full disk or by an engine that was killed",
        fix="Pulumi keeps the one before beside it: copy .pulumi/stacks/<project>/<stack>.json.bak "
        "over the .json, then run the same command again: what it lacks is looked for in Azure",
        exit_code=ExitCode.PREFLIGHT,
    )


def _wrong_passphrase(doing: str, said: Sequence[str]) -> RunnerError:
    return RunnerError(
        "R-PULUMI-PASSPHRASE",
        f"{doing} the stack: its secrets are encrypted with another passphrase",
        why=f"{said[0]}: the line encryptionsalt of the stack's file belongs to the passphrase of "
        "who deployed it first, runner's own is in RUNNER_HOME/pulumi/passphrase",
        fix="deploy from there, or copy that folder here, or set PULUMI_CONFIG_PASSPHRASE; "
        "where nothing was deployed, remove the line",
        exit_code=ExitCode.PREFLIGHT,
    )


def _protected(doing: str, said: Sequence[str]) -> RunnerError:
    """Another region or account means other resources, and data is not moved by making them."""
    names = dict.fromkeys(_URN_NAME.findall(" ".join(said)))
    return RunnerError(
        "R-PULUMI-PROTECTED",
        f"{doing} the stack: it would delete what holds runs, models and data",
        why=f"the change makes these anew: {', '.join(names) or said[0]}",
        fix="take the change of region, subscription or storage back; a stack of another name "
        "(--stack) can have it, or runner down --everything first",
        exit_code=ExitCode.PREFLIGHT,
    )


def _error_lines(text: str) -> list[str]:
    """What the engine called an error; where it did not, the last thing that it said."""
    lines = [_STREAM.sub("", line.strip()) for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith("code:")]
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error:")]
    return errors or said[-1:]
