"""The self-test: the contract, the training, and the removal of everything, in this order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.raw import send_raw
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.flows.local.lifecycle import ensure_running
from runner.flows.selftest.contract import ContractRun, compare
from runner.flows.selftest.reference import reference_emulator
from runner.flows.selftest.report import SelftestReport
from runner.flows.selftest.training import EvictedTraining
from runner.flows.submit.prepare import CheckedRun
from runner.protocol.errors import RunnerError

CONTRACT_LIMIT_S = 2700.0
TRAINING_LIMIT_S = 3600.0
_ACCESS_LIMIT_S = 900.0
_POLL_S = 5.0
_DENIED = (401, 403)


def run_selftest(
    settings: Settings,
    training: CheckedRun | None,
    report: SelftestReport,
    on_progress: OnProgress,
) -> None:
    """Execute the self-test against services that run, and fill the report.

    Args:
        settings: The settings of the target.
        training: The run to submit, or None for the contract alone.
        report: What was found is added to it, also before an error.
        on_progress: Called with every step.
    """
    suffix = secrets.token_hex(4)
    with reference_emulator() as reference:
        emulator = ContractRun(reference, "emulator", suffix, CONTRACT_LIMIT_S, on_progress)
        expected = emulator.answers()
    if settings.target == "local":
        ensure_running(settings, on_progress)
    connection = connect(settings)
    _await_access(connection, on_progress)
    contract = ContractRun(connection, settings.target, suffix, CONTRACT_LIMIT_S, on_progress)
    try:
        report.steps = compare(contract.answers(), expected)
    finally:
        report.left += contract.clean_up()
    if training is None:
        return
    trained = EvictedTraining(training, settings, TRAINING_LIMIT_S, on_progress)
    try:
        report.training = trained.execute()
    finally:
        report.left += trained.clean_up()


def _await_access(connection: Connection, on_progress: OnProgress) -> None:
    """Wait until the role assignments of a new account are in effect."""
    deadline = time.monotonic() + _ACCESS_LIMIT_S
    while send_raw(connection, "GET", "/pools?maxresults=1").status in _DENIED:
        if time.monotonic() > deadline:
            return  # the answers show it
        on_progress(Progress("access", "progress", "waiting for the role assignments"))
        time.sleep(_POLL_S)


@contextmanager
def reporting(report: SelftestReport) -> Generator[None]:
    """Note in the report when the block ended, and the error that ended it."""
    try:
        yield
    except RunnerError as err:
        report.problem = err
    finally:
        report.ended = datetime.now(UTC)
