"""Commands on the node of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.core.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.core.run_record import RunRecord
    from runner.flows.session import Session


@dataclass(frozen=True, slots=True)
class Command:
    """How a command on a run's node ended, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str


def run_command(
    session: Session,
    record: RunRecord,
    command: Sequence[str],
    node: str | int | None,
    stdin: str | None,
) -> Command:
    """Run it in the run's folder, with its environment."""
    from runner.flows.reach import capture_login, find_place, open_login

    connection, home = session.connection, session.settings.home
    place = find_place(connection, record, None if node is None else str(node))
    with open_login(connection, home, place, list(command), terminal=False) as login:
        return Command(*capture_login(login, stdin))


def check_command(command: Sequence[str], ended: Command) -> None:
    """Raises RunnerError (R-EXEC) for one that failed."""
    if ended.exit_code:
        said = ended.stderr.strip().splitlines()
        raise RunnerError(
            "R-EXEC",
            f"{command[0]} ended with code {ended.exit_code}",
            why=said[-1] if said else "",
            fix="look at .stdout and .stderr: call it without check=True",
            exit_code=ExitCode.RUN_FAILED,
        )
