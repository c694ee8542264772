"""Translate plans into Batch jobs and tasks, and Batch tasks into task views.

A run on several nodes becomes one multi-instance task.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from azure.batch import models

from runner.core.planning.plan import storage_scopes
from runner.core.states import (
    AGENT_PYTHON,
    FALLBACK_PYTHON,
    NO_PYTHON,
    OLD_PYTHON,
    OTHER_AGENT,
    TaskPhase,
    TaskView,
)
from runner.protocol.paths import code_blob
from runner.protocol.task import (
    AGENT_FILE,
    CODE_ARCHIVE,
    EVENTS_VERSION_VARIABLE,
    IMAGE_PYTHON_VARIABLE,
    JOIN_ARGUMENT,
    NODES_TOKEN_VARIABLE,
    STORAGE_VARIABLE,
    TASK_TRIALS_VARIABLE,
    TRIAL_VARIABLE,
)
from runner.protocol.waiting_trials import derive, task_trials_setting, trial_setting

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.planning.plan import RunPlan, StorageScopes
    from runner.core.recipe.secrets import SecretValues
    from runner.protocol.waiting_trials import WaitingTrials


# Batch may run the coordination command and the command of a task with `docker exec`, which ignores
# entry points. Without an entry point, both start in the same way.
NO_ENTRY_POINT = "--entrypoint="
_RUN_VARIABLE = "RUNNER_RUN_ID"
EVICTIONS_VARIABLE = (
    "BATCH_EMULATOR_EVICTIONS"  # variable of the emulator's evictions; Azure ignores it
)
# The files for every node are in the shared folder of the task, not in the working directory.
_COORDINATE = "-c '{run} \"$AZ_BATCH_TASK_SHARED_DIR/{agent}\" {sha256} {role}'"
# Runs an archive as `python3 ARCHIVE` does, if it has the SHA-256 of the second argument. It reads
# the file once: zipimport reads modules from these bytes, even if the file changes later. The text
# has no quotes and nothing that a shell expands, because it stands in quotes of a shell.
_RUN_CHECKED = (
    "import hashlib,io,os,sys,zipimport as z;a=sys.argv;p=os.path.abspath(a[1]);"
    f"b=io.FileIO(p).read();hashlib.sha256(b).hexdigest()==a[2]or sys.exit({OTHER_AGENT});"
    "z._io=type(p,(),dict(open_code=lambda q:io.BytesIO(b)if q==p else io.open_code(q)));"
    "del a[2],a[0];sys.path.insert(0,p);n=__name__;__loader__=z.zipimporter(p);"
    "__spec__=__loader__.find_spec(n);__file__=__spec__.origin;exec(__loader__.get_code(n))"
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
# -I: no module of the user, for example in the PYTHONPATH of an image, replaces one of the agent.
_COMMAND_LINE = "python3 -I -c '{run}' {agent} {sha256}"
# Arguments of /bin/sh in a container, which replaces the entry point of the image. If the Python of
# the image is too old for the agent, uv of the image or of the node installs another. The script
# still uses the Python of the image. The folder is not uv's cache, because that may be a link to a
# folder outside of the container; uv's own cache is in HOME, which may be read-only.
_EXEC_IN_IMAGE = (
    "p=$(command -v python3 || command -v python); "
    f'"${{p:-false}}" -c "import sys; sys.exit(sys.version_info < {AGENT_PYTHON})" || {{ '
    f'export {IMAGE_PYTHON_VARIABLE}="$p"; n="$AZ_BATCH_NODE_SHARED_DIR/runner"; '
    'u=$(command -v uv || echo "$n/bin/uv"); '
    'u() { UV_NO_CACHE=1 UV_PYTHON_INSTALL_DIR="$n/python-of-containers" "$u" python "$@"; }; '
    f"f() {{ u find --no-project --python-preference only-managed {FALLBACK_PYTHON}; }}; "
    f"p=$(f) || {{ u install {FALLBACK_PYTHON} && p=$(f); }} || "
    f'{{ [ -z "${IMAGE_PYTHON_VARIABLE}" ] && exit {NO_PYTHON}; exit {OLD_PYTHON}; }}; }}; '
    f'exec "$p" -I -c "{_RUN_CHECKED}"'
)
_CONTAINER_COMMAND_LINE = "-c '{run} {agent} {sha256}'"
# A limit, not an allocation: data loaders of PyTorch need more than the default of 64 MB.
_SHARED_MEMORY = "--shm-size=8g"
# Dependent tasks start even if this task fails; their agents decide by its result.json. Otherwise,
# they would wait forever and keep the job open, which counts in a quota.
_ALWAYS_SATISFIES = models.ExitConditions(
    default=models.ExitOptions(dependency_action=models.DependencyAction.SATISFY)
)
_PHASES: Mapping[str, TaskPhase] = {
    "active": "active",
    "preparing": "preparing",
    "running": "running",
    "completed": "completed",
}


def to_job(
    job_id: str,
    pool_id: str,
    priority: int = 0,
    max_parallel: int | None = None,
    limit: timedelta | None = None,
) -> models.BatchJobCreateOptions:
    """Return the job of an experiment, which stays open for later runs, or until `limit`."""
    return models.BatchJobCreateOptions(
        id=job_id,
        priority=priority,
        max_parallel_tasks=max_parallel,
        constraints=models.BatchJobConstraints(max_wall_clock_time=limit) if limit else None,
        uses_task_dependencies=True,
        pool_info=models.BatchPoolInfo(pool_id=pool_id),
        all_tasks_complete_mode=models.BatchAllTasksCompleteMode.NO_ACTION,
    )


def to_task(plan: RunPlan, connection: Connection) -> models.BatchTaskCreateOptions:
    """Return the task of a run. Its variables contain secrets: never print it."""
    lifetime = plan.access_lifetime
    settings = {_RUN_VARIABLE: plan.run_id, **node_group_settings(plan)}
    if plan.rehearsal is not None:
        settings[EVICTIONS_VARIABLE] = json.dumps(plan.rehearsal["evictions"])
    return models.BatchTaskCreateOptions(
        id=plan.task_id,
        display_name=_display_name(plan, plan.run_id),
        command_line=command_line(plan),
        container_settings=container_settings(plan),
        resource_files=agent_files(plan, connection, lifetime),
        environment_settings=agent_settings(
            connection,
            storage_scopes(plan.to_spec().to_json()),
            lifetime,
            settings,
            plan.secrets,
        ),
        constraints=models.BatchTaskConstraints(
            max_wall_clock_time=plan.wall_clock, max_task_retry_count=plan.task_retries
        ),
        depends_on=models.BatchTaskDependencies(task_ids=list(plan.depends_on))
        if plan.depends_on
        else None,
        exit_conditions=_ALWAYS_SATISFIES,
        multi_instance_settings=to_multi_instance(
            plan, agent_files(plan, connection, lifetime), AGENT_FILE
        ),
    )


def to_trial_tasks(
    plan: RunPlan, connection: Connection, waiting: WaitingTrials
) -> Iterator[dict[str, Any]]:
    """Return the request bodies of the tasks of a sweep, derived from the task of `plan`.

    Each trial has access to its own run only, also if its task runs several.
    """
    body: dict[str, Any] = to_task(plan, connection).as_dict()
    own = (_RUN_VARIABLE, STORAGE_VARIABLE)
    kept = [one for one in body["environmentSettings"] if one["name"] not in own]
    lifetime = plan.access_lifetime

    def storage(run_id: str) -> dict[str, Any]:
        scopes = storage_scopes(derive(waiting.common, waiting.trials[run_id]))
        return connection.node_storage(scopes, lifetime)

    def settings(run_id: str, later: Sequence[str]) -> Iterator[dict[str, str]]:
        access, changes = storage(run_id), waiting.trials[run_id]
        yield {"name": _RUN_VARIABLE, "value": run_id}
        yield {"name": STORAGE_VARIABLE, "value": json.dumps(access)}
        yield from kept
        yield {"name": TRIAL_VARIABLE, "value": trial_setting(waiting.group_id, changes)}
        if plan.task_trials > 1:
            others = {each: (waiting.trials[each], storage(each)) for each in later}
            yield {"name": TASK_TRIALS_VARIABLE, "value": task_trials_setting(access, others)}

    return (
        {
            **body,
            "id": task_id,
            "displayName": _display_name(plan, trials[0]),
            "environmentSettings": list(settings(trials[0], trials[1:])),
        }
        for task_id, trials in waiting.tasks().items()
    )


def command_line(plan: RunPlan) -> str:
    """Return the command line that starts the agent on the node or in the image of the run.

    Raises:
        ValueError: the hash of the agent is not a hash.
    """
    values = {"agent": AGENT_FILE, "sha256": _agent_sha256(plan)}
    if plan.recipe.image is None:
        return _COMMAND_LINE.format(run=_RUN_CHECKED, **values)
    arguments = _CONTAINER_COMMAND_LINE.format(run=_EXEC_IN_IMAGE, **values)
    return with_shell(arguments) if is_node_group(plan) else arguments


def _agent_sha256(plan: RunPlan) -> str:
    """Return the hash, which becomes a part of a shell script."""
    sha256 = plan.content.agent_sha256
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"not the hash of an agent: {sha256!r}")
    return sha256


def container_settings(plan: RunPlan) -> models.BatchTaskContainerSettings | None:
    """Return the settings of the container, or None for a run without an image.

    Batch mounts the node's folders at the same paths, so the caches of the agent work.
    """
    if plan.recipe.image is None:
        return None
    entry_point = NO_ENTRY_POINT if is_node_group(plan) else "--entrypoint=/bin/sh"
    options = [entry_point, _SHARED_MEMORY]
    if plan.pool.gpus:
        options.append("--gpus all")
    if is_node_group(plan):
        options.append("--network=host")  # to reach the other nodes
    return models.BatchTaskContainerSettings(
        image_name=plan.recipe.image,
        container_run_options=" ".join(options),
        working_directory=models.ContainerWorkingDirectory.TASK_WORKING_DIRECTORY,
    )


def agent_files(
    plan: RunPlan, connection: Connection, lifetime: timedelta
) -> list[models.ResourceFile]:
    """Return the agent and the code as resource files in the working directory."""
    content = plan.content
    return [
        connection.resource_file(code_blob(content.agent_sha256), AGENT_FILE, lifetime),
        connection.resource_file(code_blob(content.code.sha256), CODE_ARCHIVE, lifetime),
    ]


def agent_settings(
    connection: Connection,
    scopes: StorageScopes,
    lifetime: timedelta,
    settings: Mapping[str, str],
    secrets: SecretValues | None = None,
) -> list[models.EnvironmentSetting]:
    """Return `settings` and access to storage. They contain secrets: never print them."""
    storage = connection.node_storage(scopes, lifetime)
    found = {**settings, STORAGE_VARIABLE: json.dumps(storage)}
    if version := connection.outputs.events_version:
        found[EVENTS_VERSION_VARIABLE] = version
    if secrets:
        found["RUNNER_SECRETS"] = json.dumps(secrets.reveal())
    return [models.EnvironmentSetting(name=name, value=value) for name, value in found.items()]


def node_group_settings(plan: RunPlan) -> Mapping[str, str]:
    """Return the secret with which the nodes of a run authenticate each other, new per task."""
    return {NODES_TOKEN_VARIABLE: secrets.token_hex(32)} if is_node_group(plan) else {}


def to_multi_instance(
    plan: RunPlan, files: Sequence[models.ResourceFile], agent: str
) -> models.MultiInstanceSettings | None:
    """Return the settings of a node group, or None. Each node downloads `files`."""
    if not is_node_group(plan):
        return None
    on_node = f'exec python3 -I -c "{_RUN_CHECKED}"'
    command = _COORDINATE.format(
        run=on_node if plan.recipe.image is None else _EXEC_IN_IMAGE,
        agent=agent,
        sha256=_agent_sha256(plan),
        role=JOIN_ARGUMENT,
    )
    return models.MultiInstanceSettings(
        number_of_instances=plan.recipe.resources.nodes,
        coordination_command_line=with_shell(command),
        common_resource_files=list(files),
    )


def is_node_group(plan: RunPlan) -> bool:
    """Return True if the run needs several nodes."""
    return plan.recipe.resources.nodes > 1


def with_shell(arguments: str) -> str:
    """Return the command line of a shell with these arguments."""
    return f"/bin/sh {arguments}"


def _display_name(plan: RunPlan, run_id: str) -> str:
    return f"{plan.recipe.name}: {run_id}"


def to_task_view(task: models.BatchTask) -> TaskView:
    """Return the parts of a task that decide the state of its run."""
    info = task.execution_info
    failure = info.failure_info if info else None
    return TaskView(
        phase=_PHASES[wire_text(task.state)],
        node=task.node_info.node_id if task.node_info else None,
        exit_code=info.exit_code if info else None,
        failure_code=failure.code if failure else None,
        failure_message=_failure_message(failure) if failure else None,
        requeues=(info.requeue_count or 0) if info else 0,
        retries=(info.retry_count or 0) if info else 0,
        slots=task.required_slots or 1,
        since=task.state_transition_time,
    )


def _failure_message(failure: models.BatchTaskFailureInfo) -> str | None:
    """Return the message; for a container, it is in the details, with the image and the reason."""
    details = {str(pair.name): str(pair.value or "") for pair in failure.details or ()}
    detail = details.get("Message") if (failure.code or "").startswith("Container") else None
    return _first_line(detail) or _first_line(failure.message)


def _first_line(message: str | None) -> str | None:
    return message.strip().splitlines()[0] if message and message.strip() else None


def wire_text(value: object) -> str:
    """Return an SDK enum member, or its string, in lower case."""
    return str(getattr(value, "value", value)).lower()
