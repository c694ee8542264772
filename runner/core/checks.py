"""The outcome of one look before deploying, and what the command makes of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from runner.protocol.errors import ExitCode, RunnerError

CheckState = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `detail` says what was found, `fix` what to do about it."""

    name: str
    state: CheckState
    detail: str
    fix: str = ""
    code: str = ""
    exit_code: ExitCode = ExitCode.OK


def passed(name: str, detail: str) -> Check:
    """It is as it should be."""
    return Check(name, "ok", detail)


def warned(name: str, detail: str, fix: str) -> Check:
    """It works today."""
    return Check(name, "warning", detail, fix)


def skipped(name: str, why: str) -> Check:
    """It could not be looked at."""
    return Check(name, "skipped", why)


def failed(name: str, err: RunnerError) -> Check:
    """It would stop the deployment, or the first node. Wrong input counts as preflight."""
    serious = err.exit_code in (ExitCode.ACCESS, ExitCode.CAPACITY, ExitCode.COST_CAP)
    detail = f"{err.what} ({err.why})" if err.why else err.what
    code = err.exit_code if serious else ExitCode.PREFLIGHT
    return Check(name, "failed", detail, err.fix, err.code, code)


def run_check(name: str, look: Callable[[], str | Check]) -> Check:
    """Look; a text is what was found to be right, a RunnerError what is wrong."""
    try:
        found = look()
    except RunnerError as err:
        return failed(name, err)
    return passed(name, found) if isinstance(found, str) else found


def exit_code(checks: Sequence[Check]) -> ExitCode:
    """That of the first failure; warnings and what was skipped stop nobody."""
    return next((each.exit_code for each in checks if each.state == "failed"), ExitCode.OK)
