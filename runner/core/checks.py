"""Results of the checks before a deployment, and the exit code of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from runner.protocol.errors import ExitCode, RunnerError

CheckState = Literal["ok", "note", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: `detail` is what it found, `fix` the next step.

    `stops_up` is False for a failure in spite of which a deployment succeeds.
    """

    name: str
    state: CheckState
    detail: str
    fix: str = ""
    code: str = ""
    exit_code: ExitCode = ExitCode.OK
    stops_up: bool = True


def passed(name: str, detail: str) -> Check:
    """Return the result of a check that found no problem."""
    return Check(name, "ok", detail)


def noted(name: str, detail: str, fix: str) -> Check:
    """Return the result of a check that found a missing part which only some commands need."""
    return Check(name, "note", detail, fix)


def warned(name: str, detail: str, fix: str) -> Check:
    """Return the result of a check that found a problem which does not stop a deployment."""
    return Check(name, "warning", detail, fix)


def skipped(name: str, why: str) -> Check:
    """Return the result of a check that could not run."""
    return Check(name, "skipped", why)


def failed(name: str, err: RunnerError, *, stops_up: bool = True) -> Check:
    """Return the result for an error that would stop the deployment or the first node.

    Its exit code is that of the error; invalid input counts as a failed preflight check.
    """
    serious = err.exit_code in (ExitCode.ACCESS, ExitCode.CAPACITY, ExitCode.COST_CAP)
    reasons = "; ".join(line.strip() for line in err.why.splitlines())  # a cell has one line
    detail = f"{err.what} ({reasons})" if reasons else err.what
    code = err.exit_code if serious else ExitCode.PREFLIGHT
    return Check(name, "failed", detail, err.fix, err.code, code, stops_up)


def run_check(name: str, check: Callable[[], str | Check]) -> Check:
    """Call `check` and return its result: a text means passed, a RunnerError failed."""
    try:
        found = check()
    except RunnerError as err:
        return failed(name, err)
    return passed(name, found) if isinstance(found, str) else found


def warning_text(check: Check) -> str:
    """Return the warning that a check found, with the next step."""
    return f"{check.detail}: {check.fix}" if check.fix else check.detail


def exit_code(checks: Sequence[Check]) -> ExitCode:
    """Return the exit code of the first failed check, else OK."""
    return next((each.exit_code for each in checks if each.state == "failed"), ExitCode.OK)
