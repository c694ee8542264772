"""What the task's command line begins: a run, its coordination, or a schedule's job manager."""

import os
import sys

from runner.node.hosts import ROLE

# Set for a task that starts a group; others are runs.
STARTS_GROUP = "RUNNER_SCHEDULE_TASKS"


def start() -> None:
    """Do it, and end the process with its exit code."""
    from runner.node import agent  # noqa: PLC0415 - the one of the three that is wanted

    if sys.argv[1:] == [ROLE]:
        from runner.node import join  # noqa: PLC0415

        agent.exit_now(join.join())
    if STARTS_GROUP not in os.environ:
        agent.exit_now(agent.main())
    from runner.node import scheduled_group  # noqa: PLC0415

    agent.exit_now(scheduled_group.main())
