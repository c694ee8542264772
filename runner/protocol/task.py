"""Limits of Batch tasks, and names of the files, variables and arguments that start the agent."""

from __future__ import annotations

# Maximum nodes of a pool with inter-node communication (Batch quotas page).
MAX_NODES = 100
MAX_GPUS = 16  # of a node, in the requirements of a recipe
RETRIES = range(101)  # additional attempts after failures
# Shortest and longest time for which a node is kept after a failure; as long as a login lasts.
KEPT_NODE = ("5s", "1d")
PRIORITIES = range(-1000, 1001)  # priorities of a Batch job: Jobs - Create, Batch REST 2025-06-01

AGENT_FILE = "runner-agent.pyz"
CODE_ARCHIVE = "code.tar.gz"
# Limits of CODE_ARCHIVE, for packing and for unpacking.
MAX_CODE_BYTES = 500_000_000  # before compression; the archive is built in memory
MAX_CODE_FILES = 100_000
CODE_TIME = 946_684_800  # 2000-01-01: when files of code changed last; zip has no times before 1980
SHELL_FILE = "environment.sh"  # in the folder `logs` of the attempt, which is never exported
NOTEBOOK_MODULE = "runner.hooks.notebook"  # executes a notebook; the agent starts it by its file
NOTEBOOK_STOPPED = "runner: the notebook stopped: "  # printed to stderr when a cell fails
WORKER_LOG = "runner-worker.txt"  # log of a node that is not the primary, in its task's folder
JOIN_ARGUMENT = "join"  # the agent's argument in a coordination command

# Set in a container whose Python cannot run the agent: the path of that Python, or "" without one.
IMAGE_PYTHON_VARIABLE = "RUNNER_IMAGE_PYTHON"

# Set for the task of a job schedule: the first variable always, the second for a group of runs.
SCHEDULE_VARIABLE = "RUNNER_SCHEDULE"
SCHEDULE_TASKS_VARIABLE = "RUNNER_SCHEDULE_TASKS"
# Set if not every firing of the job schedule starts a run: `FiringTimes` of protocol/schedules.py.
SCHEDULE_TIMES_VARIABLE = "RUNNER_SCHEDULE_TIMES"

# Set if nodes read rebalance recommendations: the api-version of Scheduled Events that has them.
EVENTS_VERSION_VARIABLE = "RUNNER_EVENTS_VERSION"

# Set for the first run of a trial: the differences between its run.json and that of the sweep.
TRIAL_VARIABLE = "RUNNER_TRIAL"
MAX_TASK_TRIALS = 50  # trials that a task runs one after another
SPARE_STARTS = 1  # agents of a trial of such a task that may be killed, in addition to `retries`

# Secrets: never passed to the script and never printed.
STORAGE_VARIABLE = "RUNNER_STORAGE"
SECRETS_VARIABLE = "RUNNER_SECRETS"
GROUP_SECRETS_VARIABLE = "RUNNER_GROUP_SECRETS"  # for the tasks that a job manager adds
NODES_TOKEN_VARIABLE = "RUNNER_NODES_TOKEN"  # noqa: S105 - authenticates the nodes of a run
# Set for a task that runs several trials: those after the first one, with their storage access.
TASK_TRIALS_VARIABLE = "RUNNER_TASK_TRIALS"

SECRET_VARIABLES = (
    STORAGE_VARIABLE,
    SECRETS_VARIABLE,
    GROUP_SECRETS_VARIABLE,
    NODES_TOKEN_VARIABLE,
    TASK_TRIALS_VARIABLE,
)
