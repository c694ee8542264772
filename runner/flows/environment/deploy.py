"""Deploying and taking down with Pulumi's engine; imported by up, preview and down only."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.engine import automation
from runner.azure.auth.credentials import outputs_path
from runner.contract import ContractError, StackOutputs, parse_stack_outputs
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.protocol.errors import ExitCode, RunnerError

_VERBS = {"create": "created", "update": "updated", "delete": "deleted", "replace": "replaced"}


def open_engine(
    settings: Settings,
    folder: Path,
    env: Mapping[str, str],
    consent: Callable[[str], bool],
) -> automation.Environment:
    """The stack with its CLI. `consent` is asked before a missing CLI is installed."""
    root = settings.home / "pulumi-cli"
    cli = automation.find_cli(root)
    if cli is None:
        question = f"The Pulumi CLI is not installed. Install it into {root}?"
        if not consent(question):
            raise RunnerError(
                "R-PULUMI-MISSING",
                "the Pulumi CLI is not installed",
                why="up, preview and down drive it",
                fix="install it (https://www.pulumi.com/docs/install), or let runner: add --yes",
                exit_code=ExitCode.PREFLIGHT,
            )
        cli = automation.install_cli(root)
    state = automation.state_settings(settings.home, env)
    backend = automation.state_backend(settings.home, env)
    return automation.Environment(folder, settings.stack, cli, state, backend)


def preview(
    environment: automation.Environment, on_progress: OnProgress
) -> list[automation.Change]:
    """What `up` would change."""
    return automation.preview(environment, StepReport("preview", on_progress, None).see)


def deploy(
    settings: Settings,
    environment: automation.Environment,
    changes: Sequence[automation.Change],
    on_progress: OnProgress,
) -> StackOutputs:
    """Deploy and keep the outputs, so that no later command needs Pulumi."""
    total = sum(change.type.startswith("azure-native:") for change in changes)
    report = StepReport("deploy", on_progress, total)
    outputs = _outputs(automation.up(environment, report.see))
    report.end()
    keep_outputs(settings, outputs)
    return outputs


def keep_outputs(settings: Settings, outputs: StackOutputs) -> Path:
    """Write the cached outputs of the stack, whole or not at all."""
    path = outputs_path(dataclasses.replace(settings, target="azure"))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(outputs.to_json(), encoding="utf-8")
    temporary.replace(path)
    return path


def _outputs(raw: Mapping[str, object]) -> StackOutputs:
    try:
        return parse_stack_outputs(json.dumps(raw))
    except (ContractError, TypeError) as err:
        raise RunnerError(
            "R-STACK-OUTPUTS",
            "the deployment's outputs are not what runner reads",
            why=str(err),
            fix="this runner and its infra/ belong together: update both, then runner up",
            exit_code=ExitCode.PREFLIGHT,
        ) from err


class StepReport:
    """The engine's steps as one stage: how many of how many, and the newest."""

    def __init__(self, stage: str, on_progress: OnProgress, total: int | None) -> None:
        self._stage = stage
        self._on_progress = on_progress
        self._total = total
        self.done = 0
        on_progress(Progress(stage, "start", "starting the engine"))

    def see(self, step: automation.DeploymentProgress) -> None:
        """One event of the engine."""
        if step.phase == "stopping":
            self._say("progress", step.message)
        change = step.change
        if change is None or change.op == "same" or not change.type.startswith("azure-native:"):
            return  # components are the engine's own: nobody waits for them
        if step.phase == "end":
            self.done += 1
        verb = _VERBS.get(change.op, change.op)
        what = f"{change.type.removeprefix('azure-native:')} {change.name}"
        text = f"{verb} {what}" if step.phase == "end" else f"{change.op} {what}"
        self._say("failed" if step.phase == "failed" else "progress", text)

    def end(self) -> None:
        """Everything was done."""
        self._total = self.done
        self._say("end", f"{self.done} resources")

    def _say(self, state: str, text: str) -> None:
        done = None if self._total is None else float(min(self.done, self._total))
        total = None if self._total is None else float(self._total)
        kind = "failed" if state == "failed" else "end" if state == "end" else "progress"
        self._on_progress(Progress(self._stage, kind, text, done, total, "resources"))
