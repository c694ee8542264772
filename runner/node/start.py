"""What the task's command line begins: a run, or the job manager of a schedule's group."""

import os

# Set for a task that starts a group; others are runs.
STARTS_GROUP = "RUNNER_SCHEDULE_TASKS"


def start() -> None:
    """Do it, and end the process with its exit code."""
    from runner.node import agent  # noqa: PLC0415 - the one of the two that is wanted

    if STARTS_GROUP not in os.environ:
        agent.exit_now(agent.main())
    from runner.node import scheduled_group  # noqa: PLC0415

    agent.exit_now(scheduled_group.main())
