"""Drive Pulumi through its Automation API: preview, deploy and destroy, with events as plain
data.

The first Ctrl-C reaches the engine through the terminal, which then gets time to stop.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pulumi
from pulumi import automation as auto

from runner.protocol.errors import RunnerError
from runner_infra.engine.cli_archive import install_archive
from runner_infra.engine.failures import engine_errors
from runner_infra.engine.shared_state import read_secrets_provider
from runner_infra.engine.state_folder import remove_stale_locks, state_backend
from runner_infra.engine.steps import (
    OnProgress,
    StackPreview,
    Steps,
    is_in_azure,
    is_secret,
)
from runner_infra.engine.unfinished import import_unfinished, read_state
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
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as err:  # noqa: BLE001  raised in the waiting thread
            errors.append(err)
        ended.set()

    with _counting_interrupts() as pressed:
        threading.Thread(target=run, daemon=True).start()
        told = 0
        while not ended.wait(_POLL_S):
            if len(pressed) <= told:
                continue
            told += 1
            if told > 1:
                raise KeyboardInterrupt
            on_interrupt()
    if results:
        return results[0]
    raise KeyboardInterrupt if pressed else errors[0]


@contextmanager
def _counting_interrupts() -> Generator[list[int]]:
    """Yield a list to which every Ctrl-C is added.

    An exception would be lost if it was raised in a callback of the garbage collector.
    """
    pressed: list[int] = []
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # started in the background
    if ignored or threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


_STACK_TYPE = "pulumi:pulumi:Stack"
_PASSPHRASE = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


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

    def in_cloud(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables of a command, with those that select the cloud of the stack."""
        return {**env, **self.variables}


@dataclass(frozen=True, slots=True)
class Deployed:
    """A resource in the state; `id` is its ARM ID."""

    type: str
    name: str
    id: str
    protect: bool
    urn: str = ""


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
    stack: PulumiStack,
    on_progress: OnProgress,
    *,
    refresh: bool = False,
    replace: Sequence[str] = (),
) -> StackPreview:
    """Return the changes that `up` would make, in the engine's order. The state is not written.

    Args:
        stack: the stack.
        on_progress: called with every event.
        refresh: read every resource from Azure first, and return the drift.
        replace: URNs of resources to delete and create again.

    Raises:
        RunnerError: the engine failed.
    """
    steps = Steps(on_progress)
    with engine_errors("previewing", stack.name, stack.backend, steps):
        opened = _select_stack(stack, steps)
        run_despite_interrupt(
            lambda: opened.preview(
                **steps.callbacks,
                suppress_outputs=True,
                refresh=refresh,
                replace=list(replace) or None,
            ),
            steps.report_stopping,
        )
    return steps.planned()


def up(
    stack: PulumiStack,
    on_progress: OnProgress,
    *,
    refresh: bool = False,
    replace: Sequence[str] = (),
) -> dict[str, Any]:
    """Deploy the stack and return its outputs without secrets. See `preview`."""
    steps = Steps(on_progress)
    remove_stale_locks(stack.backend, stack.name)
    with engine_errors("deploying", stack.name, stack.backend, steps):
        opened = _select_stack(stack, steps)
        import_unfinished(opened)
        result = run_despite_interrupt(
            lambda: opened.up(
                **steps.callbacks,
                show_secrets=False,
                refresh=refresh,
                replace=list(replace) or None,
            ),
            steps.report_stopping,
        )
    return {key: found.value for key, found in result.outputs.items() if not found.secret}


def down(stack: PulumiStack, on_progress: OnProgress, *, everything: bool) -> None:
    """Destroy the resources that are not protected; `everything` removes the protection first.

    Raises:
        RunnerError: the engine failed.
    """
    steps = Steps(on_progress)
    remove_stale_locks(stack.backend, stack.name)
    with engine_errors("destroying", stack.name, stack.backend, steps):
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
    steps = Steps(lambda _: None)
    try:
        with engine_errors("reading the state of", stack.name, stack.backend, steps):
            state = read_state(lambda: _workspace(stack).export_stack(stack.name))
    except auto.errors.StackNotFoundError:
        return []
    found = [_deployed(each) for each in _resources(state) if is_in_azure(each["type"])]
    return [each for each in found if each.id]


def export_state(stack: PulumiStack) -> Mapping[str, Any]:
    """Return the field `deployment` of the state, with secrets encrypted; empty without a state."""
    steps = Steps(lambda _: None)
    try:
        with engine_errors("reading the state of", stack.name, stack.backend, steps):
            found = read_state(lambda: _workspace(stack).export_stack(stack.name))
    except auto.errors.StackNotFoundError:
        return {}
    return found.deployment or {}


def check_passphrase(stack: PulumiStack) -> None:
    """Raise RunnerError if the secrets of the state cannot be decrypted."""
    steps = Steps(lambda _: None)
    with engine_errors("decrypting the state of", stack.name, stack.backend, steps):
        workspace = _workspace(stack)
        read_state(lambda: auto.LocalWorkspace.export_stack(workspace, stack.name))


def list_stacks(stack: PulumiStack) -> list[str]:
    """Return the names of the stacks of the project in the backend."""
    steps = Steps(lambda _: None)
    with engine_errors("looking for", stack.name, stack.backend, steps):
        found = _workspace(stack).list_stacks()
    return [each.name.rpartition("/")[2] for each in found]


def outputs(stack: PulumiStack) -> dict[str, Any]:
    """Return the outputs of the last deployment, from any machine, without secrets."""
    steps = Steps(lambda _: None)
    with engine_errors("reading the outputs of", stack.name, stack.backend, steps):
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


def _program(stack: PulumiStack, steps: Steps) -> Callable[[], None]:
    """Return the program. It runs in this process, and stores a RunnerError in `steps`."""

    def run() -> None:
        try:
            program(stack.folder, export_state(stack), stack.in_cloud(os.environ))
        except pulumi.RunError as err:
            if isinstance(err.__cause__, RunnerError):
                steps.program_error = err.__cause__
            raise

    return run


def _select_stack(stack: PulumiStack, steps: Steps, *, create: bool = True) -> auto.Stack:
    """Return the stack. Without `create`, an unknown name creates no state."""
    workspace = _workspace(stack, _program(stack, steps))
    select = auto.Stack.create_or_select if create else auto.Stack.select
    return read_state(lambda: select(stack.name, workspace))


def _workspace(
    stack: PulumiStack, program: Callable[[], None] | None = None
) -> auto.LocalWorkspace:
    return _Workspace(
        work_dir=str(stack.folder),
        program=program,
        pulumi_command=stack.cli,
        secrets_provider=read_secrets_provider(stack.folder / f"Pulumi.{stack.name}.yaml"),
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
            name: auto.OutputValue(None if is_secret(value) else value, is_secret(value))
            for name, value in outputs.items()
        }
