"""Names of the files, variables and arguments that start the agent in a Batch task."""

from __future__ import annotations

AGENT_FILE = "runner-agent.pyz"
CODE_ARCHIVE = "code.tar.gz"
SHELL_FILE = "environment.sh"  # in the attempt's folder `logs`, which is never exported
NOTEBOOK_STOPPED = "runner: the notebook stopped: "  # what a failing cell prints to stderr
WORKER_LOG = "runner-worker.txt"  # of a node that is not the primary, in its task's folder
JOIN_ARGUMENT = "join"  # the agent's argument in a coordination command

# Set in a container whose Python is not the agent's: its path, empty if it has none.
IMAGE_PYTHON_VARIABLE = "RUNNER_IMAGE_PYTHON"

# Set for a task of a job schedule, and for one that starts a group of runs.
SCHEDULE_VARIABLE = "RUNNER_SCHEDULE"
SCHEDULE_TASKS_VARIABLE = "RUNNER_SCHEDULE_TASKS"

# Set for the first run of a trial: what its run.json has beside that of its sweep.
TRIAL_VARIABLE = "RUNNER_TRIAL"

# Secrets: the script never gets them, and nothing prints them.
STORAGE_VARIABLE = "RUNNER_STORAGE"
SECRETS_VARIABLE = "RUNNER_SECRETS"
GROUP_SECRETS_VARIABLE = "RUNNER_GROUP_SECRETS"  # of the tasks that a job manager adds
NODES_TOKEN_VARIABLE = "RUNNER_NODES_TOKEN"  # noqa: S105 - authenticates the nodes of a run

SECRET_VARIABLES = (
    STORAGE_VARIABLE,
    SECRETS_VARIABLE,
    GROUP_SECRETS_VARIABLE,
    NODES_TOKEN_VARIABLE,
)
