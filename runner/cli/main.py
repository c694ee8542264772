"""Entry of the `runner` command, and the one place that turns errors into text and exit codes.

Registration: `VERBS` names the modules of `runner.cli` in the order of `--help`, each with the
heading it stands under. A module that stands for one verb has a function of the module's own name
(`train.py` -> `def train(...)`, registered as `runner train`; its docstring's first line is the
help). A module that stands for a noun with verbs has `app: typer.Typer` (`local.py` ->
`runner local up`). At its top a module imports only typer, `runner.core.errors` and
`runner.cli.output`; everything else inside the functions, so that `--help` loads no azure and no
pydantic. Raise RunnerError for what can be expected, return for success, and
`raise typer.Exit(ExitCode.RUN_FAILED)` for an outcome that is no error of the command.
Settings: `load_settings({"target": target, ...}, cwd=Path.cwd(), env=os.environ)`.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from runner.cli.output import Output, show_error, show_trace, start_output
from runner.cli.terminal import open_closed_streams, silence_stdout
from runner.cli.usage import as_meant, usage_error, wants_json, without_debug
from runner.core.errors import ExitCode, RunnerError

VERBS: Mapping[str, str] = {
    "train": "Runs",
    "submit": "Runs",
    "schedule": "Runs",
    "ps": "Runs",
    "show": "Runs",
    "metrics": "Runs",
    "logs": "Runs",
    "attach": "Runs",
    "cancel": "Runs",
    "retry": "Runs",
    "resume": "Runs",
    "reproduce": "Runs",
    "files": "Runs",
    "ssh": "Runs",
    "exec": "Runs",
    "tensorboard": "Runs",
    "export": "Runs",
    "data": "Data and models",
    "models": "Data and models",
    "local": "Local services",
    "up": "Azure environment",
    "preview": "Azure environment",
    "down": "Azure environment",
    "check": "Azure environment",
    "pool": "Azure environment",
    "skus": "Azure environment",
    "image": "Azure environment",
    "recipe": "Recipes and settings",
    "config": "Recipes and settings",
    "version": "Recipes and settings",
    "completion": "Recipes and settings",
}

_COMPLETE = "_RUNNER_COMPLETE"
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_GC_OBJECTS = 50_000  # importing the SDKs makes that many that stay: fewer looks save 0.1 s


class _Verbs(TyperGroup):
    """Lists commands in the order of VERBS, where Typer lists nouns last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  as Typer calls it
        return [verb for verb in VERBS if verb in self.commands]

    def invoke(self, ctx: Any) -> Any:
        """Say that it was Ctrl-C which ended a command, where the command itself does not."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            Output().note("interrupted")
            raise typer.Exit(_INTERRUPTED) from None


def build_app(verbs: Sequence[str] = tuple(VERBS), *, listed: bool = False) -> typer.Typer:
    """The command line with the given verbs; the others are not even imported.

    A `listed` one only says what there is: reading the options of all verbs takes a quarter of the
    time of `runner --help`.
    """
    app = typer.Typer(
        name="runner",
        cls=_Verbs,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for verb in verbs:
        module = importlib.import_module(f"runner.cli.{verb}")
        nested = getattr(module, "app", None)
        if listed:
            text = nested.info.help if nested else getattr(module, verb).__doc__
            app.command(verb, help=text, rich_help_panel=VERBS[verb])(_no_options)
        elif nested is None:
            app.command(verb, rich_help_panel=VERBS[verb])(getattr(module, verb))
        else:
            app.add_typer(nested, name=verb, rich_help_panel=VERBS[verb], no_args_is_help=True)
    return app


def _no_options() -> None:
    """In the place of a verb that is only listed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    gc.set_threshold(_GC_OBJECTS, 20, 100)
    open_closed_streams()
    start_output()
    words, debug = without_debug(sys.argv[1:] if arguments is None else arguments)
    words = as_meant(words)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()  # the reader went away
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as err:  # noqa: BLE001  the last line of defence: text and a code, no trace
        return _report(err, words, debug=debug)
    return code


def _run(words: Sequence[str]) -> int:
    if _COMPLETE in os.environ:
        from typer._completion_classes import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
    _check_folder()
    verbs = (words[0],) if words[0] in VERBS and _COMPLETE not in os.environ else tuple(VERBS)
    listed = list(words) in (["--help"], ["-h"]) and _COMPLETE not in os.environ
    try:
        code = build_app(verbs, listed=listed)(
            args=list(words), prog_name="runner", standalone_mode=False
        )
    except SystemExit as err:
        # Typer ends with 1 on any broken pipe; 1 says here that the run failed.
        if isinstance(err.__context__, BrokenPipeError):
            raise err.__context__ from None
        raise
    return code if isinstance(code, int) else ExitCode.OK


def _check_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as err:
        raise RunnerError(
            "R-FOLDER-GONE", "the current folder was deleted", fix="cd to a folder that exists"
        ) from err


def _root() -> None:
    """Train on Azure Batch spot nodes, or on a local Azure Batch, with the same command.

    Every command takes --debug, which shows the trace of an error.
    """


def _report(err: Exception, words: Sequence[str], *, debug: bool) -> int:
    if debug:
        import traceback

        show_trace("".join(traceback.format_exception(err)))
    if isinstance(err, typer.Abort):
        return _INTERRUPTED
    expected = (
        err
        if isinstance(err, RunnerError)
        else usage_error(err, words) or _too_long(err) or _disk_full(err) or _bug(err)
    )
    # A shell that completes would draw it into the line that is being typed.
    if expected.what and not os.environ.get(_COMPLETE, "").startswith("complete_"):
        show_error(expected, as_json=wants_json(words))
    return expected.exit_code


def _too_long(err: Exception) -> RunnerError | None:
    """Any path that is typed may be longer than the file system can even look for."""
    if not isinstance(err, OSError) or err.errno != errno.ENAMETOOLONG:
        return None
    return RunnerError(
        "R-PATH-LONG",
        f"no file can have the name {str(err.filename)[:60]}…",
        why="the file system does not take names of that length",
        fix="give a shorter path",
    )


def _disk_full(err: Exception) -> RunnerError | None:
    """Any write may be the one that finds no room, to standard output as well."""
    if not isinstance(err, OSError) or err.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return RunnerError(
        "R-DISK-FULL",
        f"{err.filename or 'something'} could not be written",
        why=str(err.strerror),
        fix="make room on the disk, or where standard output goes",
        exit_code=ExitCode.PREFLIGHT,
    )


def _bug(err: Exception) -> RunnerError:
    import traceback

    frames = traceback.extract_tb(err.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return RunnerError(
        "R-BUG",
        f"{type(err).__name__}: {err}",
        why=f"this is a bug of runner, not of your input{where}",
        fix="run the command again with --debug and report what it prints",
        exit_code=ExitCode.BUG,
    )
