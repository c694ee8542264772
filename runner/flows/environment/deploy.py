"""Deploy and delete a stack with Pulumi's engine. Only up, preview and down import this."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.azure.auth.credentials import Connection, connect, outputs_path
from runner.azure.auth.sign_in import provider_variables
from runner.azure.auth.workload_file import workload_token_file
from runner.azure.batch.mover_schedule import delete_mover
from runner.azure.batch.schedules import list_schedules
from runner.azure.storage.blobs import stored_bytes
from runner.contract import MOVER_POOL, ContractError, StackOutputs, parse_stack_outputs
from runner.core.home import write_atomically
from runner.core.progress import OnProgress, Progress, Warnings
from runner.core.settings import Settings, stack_option
from runner.core.units import format_count
from runner.core.yaml_files import did_you_mean
from runner.flows.active_work import find_active
from runner.flows.environment.images import (
    delete_versions_of,
    has_image,
    image_at,
    versions_of,
)
from runner.flows.environment.plan import missing_cli
from runner.protocol.errors import RunnerError
from runner.protocol.results import StageState
from runner_infra.config.stack_file import cloud_variables
from runner_infra.engine import automation
from runner_infra.engine.cli_archive import cli_version
from runner_infra.engine.shared_state import backend_variables, is_remote
from runner_infra.engine.steps import Change, EngineStep, StackPreview

_VERBS = {"create": "created", "update": "updated", "delete": "deleted", "replace": "replaced"}


def open_stack(
    settings: Settings,
    folder: Path,
    env: Mapping[str, str],
    consent: Callable[[str], bool],
) -> automation.PulumiStack:
    """Return the stack with its CLI; `consent` is asked before a missing CLI is installed."""
    root = settings.home / "pulumi-cli"
    cli = automation.find_cli(root)
    if cli is None:
        question = f"The Pulumi CLI is not installed. Install {cli_version()} into {root}?"
        if not consent(question):
            raise missing_cli()
        cli = automation.install_cli(root)
    variables = engine_variables(settings, folder, env)
    backend = automation.state_backend(settings.home, {**env, **variables})
    return automation.PulumiStack(folder, settings.stack, cli, variables, backend)


def engine_variables(settings: Settings, folder: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables with which Pulumi's engine finds the state of a stack and signs in.

    Args:
        settings: home and stack.
        folder: the folder of `Pulumi.yaml`, which may name the state.
        env: the variables of the command.
    """
    added = cloud_variables(folder / f"Pulumi.{settings.stack}.yaml", env)
    added |= backend_variables(folder, env)
    env = {**env, **added}
    if is_remote(env.get("PULUMI_BACKEND_URL")):
        added |= workload_token_file(env)
    return {**added, **automation.state_settings(settings.home, env), **provider_variables(env)}


def preview(
    stack: automation.PulumiStack,
    on_progress: OnProgress,
    warnings: Warnings,
    *,
    refresh: bool,
    replace: Sequence[str] = (),
) -> StackPreview:
    """Return the changes of `up`, and what others changed in Azure. The state is not written.

    A stack has some tens of resources. A refresh reads each with one request, several at a time,
    so it is on by default.

    Args:
        stack: the stack.
        on_progress: called with every step.
        warnings: receives the warnings of program, engine and provider.
        refresh: compare with the present resources in Azure, not only with the state.
        replace: URNs of resources to delete and create again.

    Raises:
        RunnerError: the engine failed.
    """
    report = StepReport("preview", on_progress, None, warnings)
    return automation.preview(stack, report.see, refresh=refresh, replace=replace)


def _add_warning(warnings: Warnings, step: EngineStep) -> None:
    if step.phase == "warning":
        warnings.add(step.message)


def find_pools(stack: automation.PulumiStack, pool_ids: str | None) -> list[str]:
    """Return the URNs of deployed pools, whose IDs are separated by commas.

    Raises:
        RunnerError: R-UP-POOL, the stack has no such pool.
    """
    if pool_ids is None:
        return []
    wanted = [pool_id.strip() for pool_id in pool_ids.split(",")]
    found = {r.name.lower(): r for r in automation.deployed(stack) if r.type == POOL}
    for pool_id in wanted:
        if pool_id.lower() not in found:
            known = [each.name for each in found.values()]
            raise RunnerError(
                "R-UP-POOL",
                f"stack {stack.name!r} has no deployed pool {pool_id!r}",
                why=f"its pools: {', '.join(known) or 'none'}",
                fix=did_you_mean(pool_id, known) or "use the ID of a deployed pool",
            )
    return [found[pool_id.lower()].urn for pool_id in wanted]


def deploy(
    settings: Settings,
    stack: automation.PulumiStack,
    changes: Sequence[Change],
    on_progress: OnProgress,
    warnings: Warnings,
    *,
    refresh: bool,
    replace: Sequence[str] = (),
) -> StackOutputs:
    """Deploy, and store the outputs, so that later commands do not need Pulumi. See `preview`."""
    total = sum(change.type.startswith("azure-native:") for change in changes)
    report = StepReport("deploy", on_progress, total, warnings)
    outputs = _outputs(automation.up(stack, report.see, refresh=refresh, replace=replace))
    report.end()
    write_atomically(outputs_path(settings), outputs.to_json())
    return outputs


def end_removed_mover(
    settings: Settings, stack: automation.PulumiStack, changes: Sequence[Change]
) -> None:
    """End the schedule of the mover before its pool is deleted, if the changes do that."""
    pools = (each.name for each in changes if each.type == POOL and each.op == "delete")
    if f"pool-{MOVER_POOL}" in pools and (connection := deployed_connection(settings, stack)):
        delete_mover(connection)


def _outputs(raw: Mapping[str, object]) -> StackOutputs:
    try:
        return parse_stack_outputs(json.dumps(raw))
    except (ContractError, TypeError) as err:
        raise RunnerError(
            "R-STACK-OUTPUTS",
            "invalid outputs of the deployment",
            why=str(err),
            fix="install runner and infra in the same version, then run `runner up`",
        ) from err


class StepReport:
    """Reports the steps of the engine as the progress of one stage, and collects its warnings."""

    def __init__(
        self, stage: str, on_progress: OnProgress, total: int | None, warnings: Warnings
    ) -> None:
        self._stage = stage
        self._on_progress = on_progress
        self._total = total
        self._warnings = warnings
        self.done = 0
        on_progress(Progress(stage, "start", "starting the engine"))

    def see(self, step: EngineStep) -> None:
        """Report one event of the engine."""
        _add_warning(self._warnings, step)
        if step.phase == "stopping":
            self._report("progress", step.message)
        change = step.change
        if change is None or change.op == "same" or not change.type.startswith("azure-native:"):
            return  # components exist only in the engine
        if step.phase == "refresh":
            self._report("progress", f"read {change.name}")
            return
        if step.phase == "end":
            self.done += 1
        verb = _VERBS.get(change.op, change.op)
        what = f"{change.type.removeprefix('azure-native:')} {change.name}"
        text = f"{verb} {what}" if step.phase == "end" else f"{change.op} {what}"
        self._report("failed" if step.phase == "failed" else "progress", text)

    def end(self) -> None:
        """Report the end of the stage."""
        self._total = self.done
        self._report("end", f"{self.done} resources")

    def _report(self, state: StageState, text: str) -> None:
        done = None if self._total is None else float(min(self.done, self._total))
        total = None if self._total is None else float(self._total)
        self._on_progress(Progress(self._stage, state, text, done, total, "resources"))


_ACTIVE_SHOWN = 5
# Our estimates, for the order of magnitude: hot blobs, locally redundant, as commonly quoted for
# East US. The price pages could not be read (2026-11-21).
_BLOB_USD_PER_GB_MONTH = 0.018
# Likewise: files, transaction optimized, per GiB used.
_FILE_USD_PER_GIB_MONTH = 0.06
_GB = 1e9
_STORAGE = "2023-05-01"
ACCOUNT, _CONTAINER = "azure-native:batch:BatchAccount", "azure-native:storage:BlobContainer"
_SHARE, POOL = "azure-native:storage:FileShare", "azure-native:batch:Pool"
_FIRING = frozenset({"active", "disabled"})


@dataclass(frozen=True, slots=True)
class Remains:
    """The deployed parts of a stack.

    Attributes:
        resources: All deployed resources.
        parts: Parts that stay after `down`: name, bytes, USD per month (None is unknown).
        active: Sweeps, groups and runs that have not ended.
        versions: Versions of the stack's VM image.
        schedules: Schedules that use its pools.
    """

    resources: Sequence[automation.Deployed]
    parts: Sequence[tuple[str, int | None, float | None]]
    active: Sequence[str]
    versions: Sequence[str] = ()
    schedules: Sequence[str] = ()


def find_remains(
    settings: Settings,
    stack: automation.PulumiStack,
    env: Mapping[str, str],
    on_progress: OnProgress,
    *,
    ask: bool,
) -> Remains:
    """Read the state of a stack; with `ask`, also active tasks, schedules and sizes from Azure."""
    on_progress(Progress("look", "start", "reading the state"))
    resources = automation.deployed(stack)
    connection = deployed_connection(settings, stack) if ask and resources else None
    active: Sequence[str] = ()
    schedules: Sequence[str] = ()
    sizes: Mapping[str, int] = {}
    if connection is not None:
        pools = _pools_to_delete(resources)
        if pools is None or pools:
            on_progress(Progress("look", "progress", "checking for active runs and schedules"))
            active = find_active(connection, pools).names
            schedules = firing_schedules(connection, pools)
        on_progress(Progress("look", "progress", "reading the size of stored data"))
        sizes = _sizes(connection, resources, env)
    versions = versions_of(resources, env)
    on_progress(Progress("look", "end", format_count(len(resources), "resource")))
    return Remains(resources, _parts(resources, sizes), active, versions, schedules)


def _pools_to_delete(resources: Sequence[automation.Deployed]) -> Collection[str] | None:
    """Return the IDs of the pools that `down` deletes; None means all pools of the account.

    An adopted account is not in the state, and may have other pools.
    """
    if any(found.type == ACCOUNT for found in resources):
        return None
    return [found.id.rpartition("/")[2] for found in resources if found.type == POOL]


def firing_schedules(connection: Connection, pools: Collection[str] | None) -> Sequence[str]:
    """Return the schedules that use these pools, or any pool of the account if None.

    That of the mover ends with the stack, so it is left out.
    """
    wanted = None if pools is None else {each.lower() for each in pools}
    return [
        view.schedule_id
        for view in list_schedules(connection)
        if view.state in _FIRING
        and view.schedule_id != MOVER_POOL
        and (wanted is None or view.pool.lower() in wanted)
    ]


def refuse_active_runs(remains: Remains, *, stack: str | None, everything: bool) -> None:
    """Raise RunnerError while tasks wait or run, or schedules use the pools.

    `stack` (None: that of the settings) and `everything` are the options of the command, which
    the printed commands repeat.
    """
    there = stack_option(stack)
    force = f"runner down{there}{' --everything' if everything else ''} --force"
    if remains.active:
        shown = ", ".join(remains.active[:_ACTIVE_SHOWN])
        more = " and more" if len(remains.active) > _ACTIVE_SHOWN else ""
        raise RunnerError(
            "R-DOWN-ACTIVE",
            "runs are still active",
            why=f"waiting or running: {shown}{more}",
            fix=f"`runner cancel {remains.active[0]} --target azure{there}` for each, or "
            f"`{force}` to lose them",
        )
    if remains.schedules:
        raise RunnerError(
            "R-DOWN-SCHEDULES",
            "schedules use the pools of the stack",
            why=f"{', '.join(remains.schedules)}: an adopted account keeps them, and they continue "
            "to create jobs, without a pool; an account of the stack loses them",
            fix=f"`runner schedule rm {remains.schedules[0]} --target azure{there}` for each, or "
            f"`{force}` to ignore them",
        )


def destroy(
    settings: Settings,
    stack: automation.PulumiStack,
    env: Mapping[str, str],
    on_progress: OnProgress,
    warnings: Warnings,
    *,
    everything: bool,
) -> list[automation.Deployed]:
    """Delete the stack and its cached outputs. Return the remaining resources."""
    before = automation.deployed(stack)
    if has_image(before):
        automation.check_passphrase(stack)  # the engine would check it after this
    delete_versions_of(before, env, on_progress)
    going = [found for found in before if everything or not found.protect]
    pools = _pools_to_delete(going)
    if pools is not None and MOVER_POOL in pools:  # an adopted account would keep the schedule
        connection = deployed_connection(settings, stack)
        if connection is not None:
            delete_mover(connection)
    report = StepReport("down", on_progress, len(going), warnings)
    try:
        automation.down(stack, report.see, everything=everything)
    finally:
        if report.done:
            outputs_path(settings).unlink(missing_ok=True)
    report.end()
    return automation.deployed(stack)


def deployed_connection(settings: Settings, stack: automation.PulumiStack) -> Connection | None:
    """Return the services of the stack, or None if no deployment has succeeded.

    They are read from the state, because cached outputs may be damaged, or belong to another stack
    with this name.
    """
    try:
        return Connection(parse_stack_outputs(json.dumps(automation.outputs(stack))), None)
    except ContractError:
        if outputs_path(settings).exists():
            return connect(settings.for_whole_stack())
        return None


def _sizes(
    connection: Connection, resources: Sequence[automation.Deployed], env: Mapping[str, str]
) -> dict[str, int]:
    """Return bytes by name of container and share; unreadable ones are missing."""
    sizes: dict[str, int] = {}
    try:
        sizes.update(stored_bytes(connection))
        for share in resources:
            if share.type == _SHARE:
                management, path = image_at(share.id, env)
                found = management.get(path, _STORAGE, **{"$expand": "stats"}).get("properties", {})
                sizes[share.name] = int(found["shareUsageBytes"])
    except (RunnerError, KeyError):
        pass
    return sizes


def _parts(
    resources: Sequence[automation.Deployed], sizes: Mapping[str, int]
) -> list[tuple[str, int | None, float | None]]:
    """Return containers and shares with size and cost; other protected resources are free."""
    rates = {
        _CONTAINER: ("container", _BLOB_USD_PER_GB_MONTH / _GB),
        _SHARE: ("file share", _FILE_USD_PER_GIB_MONTH / 2**30),
    }
    parts: list[tuple[str, int | None, float | None]] = []
    for found in resources:
        if found.protect and found.type in rates:
            kind, usd_per_byte = rates[found.type]
            size = sizes.get(found.name)
            usd = None if size is None else size * usd_per_byte
            parts.append((f"{kind} {found.name}", size, usd))
    return parts
