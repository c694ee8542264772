"""Entry of the `runner` command, and the one place that turns errors into text and exit codes.

Registration: `VERBS` names the modules of `runner.cli` in the order of `--help`. A module that
stands for one verb has a function of the module's own name (`train.py` -> `def train(...)`,
registered as `runner train`, its docstring's first line is the help). A module that stands for a
noun with verbs has `app: typer.Typer` (`local.py` -> `runner local up`). At its top a module
imports only typer, `runner.core.errors` and `runner.cli.output`; everything else inside the
functions, so that `--help` loads no azure, pydantic or rich table. Add your module's name to
`VERBS`; raise RunnerError for what can be expected; return for success;
`raise typer.Exit(ExitCode.RUN_FAILED)` for an outcome that is no error of the command.
Settings: `load_settings({"target": target, ...}, cwd=Path.cwd(), env=os.environ)`.
"""

from __future__ import annotations

VERBS: tuple[str, ...] = ()


def main() -> int:
    """Run the command line and return its exit code."""
    raise NotImplementedError
