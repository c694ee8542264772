"""The task of a run: names of the environment variables, files and arguments that start the
agent.
"""

from __future__ import annotations

SHELL_FILE = "environment.sh"  # in the attempt's folder `logs`, which is never exported


SCHEDULE_VARIABLE = "RUNNER_SCHEDULE"


JOIN_ARGUMENT = "join"  # the agent's argument in a coordination command


NODES_TOKEN_VARIABLE = "RUNNER_NODES_TOKEN"  # noqa: S105 - a secret's name: only who has it may take part


# Set for a task that starts a group; others are runs.
SCHEDULE_TASKS_VARIABLE = "RUNNER_SCHEDULE_TASKS"


SECRETS_VARIABLE = "RUNNER_SECRETS"  # a secret: never given to the script, never printed


STORAGE_VARIABLE = "RUNNER_STORAGE"  # a secret: never given to the script, never printed


GROUP_SECRETS_VARIABLE = "RUNNER_GROUP_SECRETS"  # of the tasks that a job manager adds: the same


SECRET_VARIABLES = (
    STORAGE_VARIABLE,
    SECRETS_VARIABLE,
    GROUP_SECRETS_VARIABLE,
    NODES_TOKEN_VARIABLE,
)


CODE_ARCHIVE = "code.tar.gz"
