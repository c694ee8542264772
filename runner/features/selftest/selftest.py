"""The self-test: compare the contract, train a recipe, and remove all resources, in this order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection
from runner.azure.batch.pools import list_pools
from runner.azure.batch.raw import send_raw
from runner.core.planning.plan import CheckedRun
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings, stack_option
from runner.features.selftest.contract import Answer, ContractRun, compare
from runner.features.selftest.reference import reference_emulator
from runner.features.selftest.report import SelftestReport, charging
from runner.features.selftest.training import EvictedTraining
from runner.flows.submit.pipeline import open_services
from runner.protocol.errors import RunnerError

CONTRACT_LIMIT_S = 2700.0
TRAINING_LIMIT_S = 3600.0
ACCESS_LIMIT_S = 900.0
_POLL_S = 5.0
_DENIED = (401, 403)


@dataclass(frozen=True, slots=True)
class Expected:
    """The answers of the emulator; `suffix` is the suffix of the names in its requests."""

    suffix: str
    answers: Sequence[Answer]


def ask_emulator(on_progress: OnProgress) -> Expected:
    """Return the answers of a new emulator, which ends with this call."""
    suffix = secrets.token_hex(4)
    with reference_emulator() as reference:
        run = ContractRun(reference, "emulator", suffix, CONTRACT_LIMIT_S, on_progress)
        return Expected(suffix, run.answers())


def run_selftest(
    settings: Settings,
    expected: Expected,
    training: CheckedRun | None,
    report: SelftestReport,
    on_progress: OnProgress,
    *,
    stack: str | None,
) -> None:
    """Execute the self-test and fill the report; local services that do not run are started.

    Args:
        settings: The settings of the target.
        expected: The answers to compare with.
        training: The run to submit, or None for the comparison alone.
        report: Receives the findings, even before an error.
        on_progress: Called with every step.
        stack: The option `--stack` of the command, for the commands that errors print.
    """
    connection, _ = open_services(settings, on_progress)
    if settings.target.runs_here:
        list_pools(connection)  # fails now if access is denied
    else:
        await_access(connection, ACCESS_LIMIT_S, on_progress, stack=stack)
    contract = ContractRun(
        connection, settings.target.name, expected.suffix, CONTRACT_LIMIT_S, on_progress
    )
    with charging(report, "node of the requests", report.usd_per_hour):
        try:
            report.steps = compare(contract.answers(), expected.answers)
        except BaseException:
            if settings.target.runs_here:  # on Azure, the stack is deleted with everything in it
                report.left += contract.clean_up()
            raise
        report.left += contract.clean_up()
    if training is None:
        return
    trained = EvictedTraining(training, settings, TRAINING_LIMIT_S, on_progress, stack=stack)
    with charging(report, "node of the training", report.usd_per_hour):
        try:
            report.training = trained.execute()
        finally:
            report.left += trained.clean_up()


def await_access(
    connection: Connection, limit_s: float, on_progress: OnProgress, *, stack: str | None
) -> None:
    """Wait until the role assignments of a new account are in effect. Raise RunnerError."""
    deadline = time.monotonic() + limit_s
    while send_raw(connection, "GET", "/pools?maxresults=1").status in _DENIED:
        if time.monotonic() > deadline:
            raise RunnerError(
                "R-SELFTEST-ACCESS",
                f"account {connection.outputs.batch_account} denies access",
                why=f"its role assignments had no effect after {limit_s / 60:.0f} minutes",
                fix=f"run `runner check{stack_option(stack)}`, then try again",
            )
        on_progress(Progress("access", "progress", "waiting for the role assignments"))
        time.sleep(_POLL_S)


@contextmanager
def reporting(report: SelftestReport) -> Generator[None]:
    """Record the end of the block in the report, and the error that ended it."""
    try:
        yield
    except RunnerError as err:
        report.problem = report.problem or err
    except KeyboardInterrupt:
        report.problem = report.problem or RunnerError(
            "R-SELFTEST-INTERRUPTED", "the self-test was interrupted", fix="run the self-test again"
        )
        raise
    finally:
        report.ended = datetime.now(UTC)
