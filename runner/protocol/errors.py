"""The base of all expected errors: what, why and fix, with an error code and an exit code.

An error is raised where the problem is found, with a new code for each new fix. Each code has an
entry in runner/explanations, which `runner explain` prints. tests/unit/fix_situations.py has the
situation of each fix that is a `runner` command.
"""

from __future__ import annotations

from enum import IntEnum


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


class RunnerError(Exception):
    """An expected failure; `code` looks like `R-RECIPE-UNKNOWN`, `fix` is the next step."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        exit_code: ExitCode = ExitCode.USAGE,
    ) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code

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
        return _rebuild, (type(self), self.code, self.what, self.why, self.fix, self.exit_code)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows instead of a traceback."""
        return str(self).splitlines()


def _rebuild(
    kind: type[RunnerError], code: str, what: str, why: str, fix: str, exit_code: ExitCode
) -> RunnerError:
    return kind(code, what, why=why, fix=fix, exit_code=exit_code)
