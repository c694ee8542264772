"""The base of all expected errors: what, why and fix, with an error code and an exit code.

An error is raised where the problem is found, with a new code for each new fix. Each code has an
entry in runner/explanations, which `runner explain` prints. tests/unit/fix_situations.py has the
situation of each fix that is a `runner` command.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import NamedTuple


class ExitCode(IntEnum):
    """Exit codes of the `runner` command."""

    OK = 0
    RUN_FAILED = 1
    USAGE = 2
    PREFLIGHT = 3
    ACCESS = 4
    CAPACITY = 5
    COST_CAP = 6
    BUG = 70
    INTERRUPTED = 130  # the shell's code for Ctrl-C


# Codes of errors by the exit code that they imply, unless they are raised with another one.
_RUN_FAILED = """
    R-BLOB-NAME R-DATA-CHANGED R-DATA-HASH R-DEV-ENDED R-EXEC R-GROUP-BROKEN R-IMAGE-BUILD
    R-MODEL-HASH R-OUTPUT-HASH R-RETRY-CYCLE R-RUN-FAILED R-SCHEDULE-BROKEN
    R-NODE-RESTART R-SWEEP-BEST
"""
_PREFLIGHT = """
    R-ADOPT-MISSING R-ADOPT-UNFIT R-AFTER-FAILED R-AZURE R-AZURE-BUDGET R-AZURE-CONFLICT
    R-AZURE-EXISTS R-AZURE-IN-USE R-AZURE-MISSING R-AZURE-PROVIDER R-AZURE-REGION
    R-AZURE-UNREACHABLE R-AZURE-VALUE R-CONTAINER-MISSING R-COST-STORED R-DATA-FOLDER
    R-DATA-NOT-CONFIRMED R-DATA-READ R-DISK-FULL R-DISK-SPACE R-DOWN-ACTIVE R-DOWN-SCHEDULES
    R-EVICT-AZURE R-EVICT-DEDICATED R-EXPORT-DELETED R-EXPORT-MLFLOW R-EXTRA-MISSING
    R-FORMULA-DECLARED R-HOME-OWNER R-HOME-WRITE R-IMAGE-BUILDER R-IMAGE-DELETE
    R-IMAGE-ENDED R-IMAGE-NONE R-IMAGE-SOURCE R-IMAGE-TEMPLATE R-IMAGE-VERSION
    R-INFRA-MISSING R-INPUT R-JOB-DISABLED R-JOB-ENDED R-JOB-MOVED R-JOB-MOVING
    R-JOIN-FILE R-JOIN-KNOWN R-JOIN-NONE
    R-LOCAL-AZURITE R-LOCAL-BLOCKED R-LOCAL-DOWN R-LOCAL-EXTRA R-LOCAL-NODE R-LOCAL-START
    R-LOCAL-STATE R-LOCK R-MACHINE-RETIRED R-MACHINE-SPOT R-MACHINE-UNKNOWN R-MODEL-FOLDER
    R-MONITOR-PORT R-NAME-TAKEN R-NODE-MISSING R-NOTIFY-SEND R-NOTIFY-URL R-NOTIFY-VAULT
    R-OPERATOR-NAME R-OTLP-EXPORT R-OUTPUT-FOLDER
    R-PACKAGE-MISSING R-PLOT-WRITE R-POOL-AUTOSCALED R-POOL-CONTAINERS R-POOL-DECLARED
    R-POOL-DELETED R-POOL-ENCRYPTION R-POOL-FIT R-POOL-FORMULA R-POOL-IMAGE R-POOL-IN-USE
    R-POOL-MISSING
    R-POOL-NODES R-POOL-NONE R-POOL-NOT-AUTOSCALED R-POOL-PRELOAD R-POOL-SLOTS R-POOL-TEAM
    R-POOL-UNUSABLE R-POOL-UPDATE R-PORT-TAKEN R-PRICES-FETCH R-PRICES-READ
    R-PROJECT-MISSING R-PULUMI-FAILED R-PULUMI-INSTALL R-PULUMI-LOCKED R-PULUMI-MISSING
    R-PULUMI-PASSPHRASE R-PULUMI-PROTECTED R-PULUMI-STATE R-REACH-CLOSED R-REACH-KEY
    R-REACH-SSH R-RECIPE-WRITE R-REGISTRY-NONE R-RUN-IN-USE R-RUN-WRITTEN R-SCHEDULE-NODES
    R-SECRET-SEND R-SECRET-VAULT R-SELFTEST-EMULATOR R-SELFTEST-STACK R-SERVICE
    R-SERVICES-DOWN R-SHARE-NONE R-STACK-FOREIGN R-STACK-IDENTITY R-STACK-MISSING
    R-STACK-NO-CODE R-STACK-NODES-ADD R-STACK-OUTPUTS R-TASKS-REFUSED R-TEAM-UNKNOWN
    R-TENSORBOARD R-UP-ACTIVE R-UP-CHANGED
"""
_ACCESS = """
    R-ACCESS-DENIED R-AZURE-DENIED R-AZURE-LOCKED R-AZURE-SIGN-IN R-AZURE-SUBSCRIPTION R-CLOCK
    R-JOIN-ROLES R-JOIN-SUBSCRIPTION
    R-REACH-FOLDER R-REACH-HOST-KEY R-REACH-USER R-SELFTEST-ACCESS
"""
_CAPACITY = """
    R-AZURE-BUSY R-AZURE-CAPACITY R-AZURE-QUOTA R-POOL-DELETE R-POOL-RESIZING R-QUOTA
    R-REACH-NODE R-REACH-WAITING R-SELFTEST-TIMEOUT R-SERVICE-BUSY R-STORAGE-FULL R-TIMEOUT
"""
_COST_CAP = """
    R-BUDGET R-COST-CAP R-COST-NEED R-COST-POOL R-COST-UNKNOWN R-POOL-CAP
    R-SELFTEST-COST R-SELFTEST-PRICE
"""
# Codes that are not here exit with USAGE.
EXIT_CODES: dict[str, ExitCode] = {
    **dict.fromkeys(_RUN_FAILED.split(), ExitCode.RUN_FAILED),
    **dict.fromkeys(_PREFLIGHT.split(), ExitCode.PREFLIGHT),
    **dict.fromkeys(_ACCESS.split(), ExitCode.ACCESS),
    **dict.fromkeys(_CAPACITY.split(), ExitCode.CAPACITY),
    **dict.fromkeys(_COST_CAP.split(), ExitCode.COST_CAP),
    "R-BUG": ExitCode.BUG,
    "R-QUALIFY-INTERRUPTED": ExitCode.INTERRUPTED,
    "R-SELFTEST-INTERRUPTED": ExitCode.INTERRUPTED,
}


class RunnerError(Exception):
    """An expected failure; `code` looks like `R-RECIPE-UNKNOWN`, `fix` is the next step."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = EXIT_CODES.get(code, ExitCode.USAGE) if exit_code is None else exit_code

    @property
    def summary(self) -> str:
        """`what` and `why` in one line."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.what}"]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all parts. The default would only pass `what`."""
        rebuild = partial(type(self), why=self.why, fix=self.fix, exit_code=self.exit_code)
        return rebuild, (self.code, self.what)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows instead of a traceback."""
        return str(self).splitlines()


class FaultText(NamedTuple):
    """What RunnerError says for an error code of a service."""

    code: str
    what: str
    fix: str

    def error(self, why: str) -> RunnerError:
        """Return the RunnerError."""
        return RunnerError(self.code, self.what, why=why, fix=self.fix)
