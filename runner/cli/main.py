"""Entry of the `runner` command: find the verb, run it, and turn errors into text and exit codes.

`_CORE` lists the verbs of the core in the order of `--help`, each with its heading, its module in
`runner.cli.commands`, and a name in the module: a function (the first line of its docstring is the
help), or a `typer.Typer` for a noun with its own verbs. `VERBS` has those of the optional features,
too, which the packages in `runner/features` declare. At its top, a command module imports only the
standard library, typer, modules of `runner.cli`, and what these need: units, metrics and errors. It
imports everything else in its functions, so that `--help` loads neither an Azure SDK nor pydantic.
A verb returns on success, raises RunnerError for an expected failure, and raises
`typer.Exit(ExitCode.RUN_FAILED)` if the command succeeded but the run failed.
"""

from __future__ import annotations

import errno
import gc
import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from runner.cli.ui.output import Output, show_error, show_trace, start_output
from runner.cli.ui.terminal import open_closed_streams, silence_stdout
from runner.core.home import full_disk
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.host import exclude_loopback

_DEBUG = "--debug"
# Why and fix of an unknown option, by command that passes arguments to a script.
_UNKNOWN_OPTION_ADVICE = {
    "train": (
        "parameters of a recipe are set with --set; arguments of a script follow --",
        "--set {name}=VALUE; `runner train --help` lists the options",
    ),
    "exec": ("options of the command follow --", "runner exec RUN -- COMMAND -{name}"),
}
# Why and fix of options that users know from other programs, by our command and the option.
_FOREIGN_OPTIONS = {
    **dict.fromkeys(
        ("train env-file", "sweep start env-file", "dev env-file"),
        (
            "such files often contain secrets, which the record of a run would show",
            "--env NAME=VALUE for each variable, and `secrets` in train.yaml for a secret",
        ),
    ),
    "submit env": (
        "the file sets the variables of each task",
        "`env` below a task, or below `defaults` for all tasks",
    ),
}
# Messages of pydantic and Typer, and their replacements.
_MESSAGE_REPLACEMENTS = (
    (re.compile(r"Input should be a valid integer, .*"), "expected a whole number such as 3"),
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"the minimum is \1"),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"the maximum is \1"),
    (re.compile(r"^No such option: "), "unknown option "),
    (re.compile(r"^No such command "), "unknown command "),
    (
        re.compile(r"^Got unexpected extra argument(?:s|\(s\))? \((.+)\)$"),
        r"unexpected argument: \1",
    ),
)
# Verbs of other programs, and our commands.
_FOREIGN_VERBS = {
    **dict.fromkeys(("run", "fit"), "train RECIPE"),
    **dict.fromkeys(("list", "ls", "runs", "jobs", "history"), "ps"),
    **dict.fromkeys(("stop", "kill", "terminate", "abort"), "cancel RUN"),
    **dict.fromkeys(("delete", "remove", "del", "prune"), "rm RUN; runner local prune"),
    **dict.fromkeys(("status", "describe", "info"), "show RUN; runner local status"),
    **dict.fromkeys(("new", "create"), "recipe new NAME"),
    **dict.fromkeys(("start", "serve", "emulator"), "local up"),
    **dict.fromkeys(("download", "get", "outputs", "artifacts"), "files get RUN"),
    **dict.fromkeys(("upload", "put", "push"), "data put PATH"),
    **dict.fromkeys(("deploy", "provision", "setup"), "up"),
    **dict.fromkeys(("destroy", "teardown"), "down"),
    **dict.fromkeys(("watch", "follow", "tail"), "attach RUN; runner logs -f RUN"),
    **dict.fromkeys(("shell", "connect"), "ssh RUN"),
    **dict.fromkeys(("settings", "env"), "config show; runner local env"),
    **dict.fromkeys(("login", "doctor"), "check"),
}
_COMPLETION = {"--install-completion": ["--install"], "--show-completion": []}
_MESSAGES = {"--version": ["version"], "-V": ["version"]}


def normalize_words(words: Sequence[str]) -> list[str]:
    """Translate spellings that other programs accept: `runner --version`, `runner help train`."""
    if not words:
        return ["--help"]
    if words[0] == "help":
        return [*words[1:], "--help"]
    if words[0] in _COMPLETION:  # options of Typer and pip
        return ["completion", *words[1:], *_COMPLETION[words[0]]]
    return [*_MESSAGES.get(words[0], words[:1]), *words[1:]]


def split_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the words without `--debug`, and whether it was set, here or in RUNNER_DEBUG."""
    own = _own_words(words)
    rest = [word for word in own if word != _DEBUG]
    debug = len(rest) < len(own) or os.environ.get("RUNNER_DEBUG", "") not in {"", "0"}
    return [*rest, *words[len(own) :]], debug


def wants_json(words: Sequence[str]) -> bool:
    """Return True if JSON was requested, even in words that Typer cannot parse."""
    text = " ".join(_own_words(words))
    return re.search(r"(^|\s)(-o\s*=?|--output[ =])json(\s|$)", text) is not None


def _own_words(words: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`; the words after it belong to the script."""
    return words[: words.index("--")] if "--" in words else words


def usage_error(err: Any, words: Sequence[str]) -> RunnerError | None:
    """Return an error of Typer as a RunnerError; None if it is another error."""
    if not hasattr(err, "format_message"):
        return None
    message = " ".join(str(err.format_message()).replace("Value error, ", "").split())
    for raw, ours in _MESSAGE_REPLACEMENTS:
        message = raw.sub(ours, message)
    message = message[:1].lower() + message[1:]
    if type(err).__name__ == "NoArgsIsHelpError":  # the help text has been printed
        return RunnerError("R-USAGE", message, fix="add one of the commands above")
    if words and message.startswith(f"unknown command '{words[0]}'") and words[0] in _FOREIGN_VERBS:
        fix = f"runner {_FOREIGN_VERBS[words[0]]}"
        return RunnerError("R-USAGE", f"unknown command '{words[0]}'", fix=fix)
    context = getattr(err, "ctx", None)
    is_noun = bool(words) and words[0] in VERBS and VERBS[words[0]].name.endswith("app")
    named = ["runner", *words[: 1 + is_noun]]  # the error of a missing value has no context
    command = context.command_path if context else " ".join(named)
    verb = command.removeprefix("runner ")
    option = str(getattr(err, "option_name", "") or "")
    name = option.lstrip("-")
    if elsewhere := _FOREIGN_OPTIONS.get(f"{verb} {name}"):
        why, fix = elsewhere
        return RunnerError("R-USAGE", f"unknown option {option}", why=why, fix=fix)
    if type(err).__name__ == "NoSuchOption" and verb in _UNKNOWN_OPTION_ADVICE:
        import difflib

        # Typer also suggests less similar options, for example for a parameter of a recipe.
        near = difflib.get_close_matches(option, err.possibilities or (), n=1, cutoff=0.8)
        why, fix = _UNKNOWN_OPTION_ADVICE[verb]
        fix = f"did you mean {near[0]}?" if near else fix.format(name=name)
        return RunnerError("R-USAGE", f"unknown option {option}", why=why, fix=fix)
    return RunnerError("R-USAGE", message.rstrip("."), fix=f"{command} --help")


class Verb(NamedTuple):
    """A verb: its heading in `--help`, and its implementation."""

    heading: str
    module: str  # below `package`
    name: str  # name of a function, or of the Typer app of a noun
    package: str = "runner.cli.commands"

    def load(self) -> Any:
        """Import the module and return the function or the Typer app."""
        return getattr(importlib.import_module(f"{self.package}.{self.module}"), self.name)


_CORE: Mapping[str, Verb] = {
    "train": Verb("Runs", "runs.train", "train"),
    "submit": Verb("Runs", "sweeps.submit", "submit"),
    "sweep": Verb("Runs", "sweeps.sweep", "app"),
    "ps": Verb("Runs", "runs.ps", "ps"),
    "experiments": Verb("Runs", "sweeps.experiments", "app"),
    "show": Verb("Runs", "runs.show", "show"),
    "why": Verb("Runs", "runs.why", "why"),
    "cost": Verb("Runs", "costs.cost", "app"),
    "budget": Verb("Runs", "costs.budget", "app"),
    "events": Verb("Runs", "runs.why", "events"),
    "metrics": Verb("Runs", "runs.metrics", "metrics"),
    "logs": Verb("Runs", "runs.logs", "logs"),
    "attach": Verb("Runs", "runs.attach", "attach"),
    "cancel": Verb("Runs", "runs.attach", "cancel"),
    "rm": Verb("Runs", "runs.rm", "rm"),
    "index": Verb("Runs", "runs.index", "app"),
    "retry": Verb("Runs", "runs.repeat", "retry"),
    "resume": Verb("Runs", "runs.repeat", "resume"),
    "reproduce": Verb("Runs", "runs.reproduce", "reproduce"),
    "files": Verb("Runs", "runs.files", "app"),
    "ssh": Verb("Runs", "runs.ssh", "ssh"),
    "exec": Verb("Runs", "runs.ssh", "exec"),
    "dev": Verb("Runs", "runs.dev", "dev"),
    "data": Verb("Data and models", "data", "app"),
    "models": Verb("Data and models", "models", "app"),
    "local": Verb("Local services", "environment.local", "app"),
    "init": Verb("Azure environment", "environment.init", "init"),
    "join": Verb("Azure environment", "environment.join", "join"),
    "up": Verb("Azure environment", "environment.deploy", "up"),
    "preview": Verb("Azure environment", "environment.deploy", "preview"),
    "down": Verb("Azure environment", "environment.deploy", "down"),
    "check": Verb("Azure environment", "environment.deploy", "check"),
    "pool": Verb("Azure environment", "environment.pool", "app"),
    "skus": Verb("Azure environment", "environment.pool", "skus"),
    "image": Verb("Azure environment", "environment.image", "app"),
    "recipe": Verb("Recipes and settings", "recipe", "app"),
    "config": Verb("Recipes and settings", "client", "config_app"),
    "explain": Verb("Recipes and settings", "explain", "explain"),
    "version": Verb("Recipes and settings", "client", "version"),
    "completion": Verb("Recipes and settings", "client", "completion"),
    "bug-report": Verb("Recipes and settings", "bug_report", "bug_report"),
}


def _with_features() -> tuple[Mapping[str, Verb], Mapping[str, Mapping[str, Verb]]]:
    """Return the verbs of core and features in the order of `--help`, and more commands of nouns.

    The `__init__` of each package in `runner/features` declares its verbs in `VERBS`: module, name,
    and the verb above it in `--help`. A key of two words is a command of a noun.
    """
    verbs, order = dict(_CORE), list(_CORE)
    commands: dict[str, dict[str, Verb]] = {}
    folder = Path(importlib.import_module("runner.features").__path__[0])
    names = sorted(each.parent.name for each in folder.glob("*/__init__.py"))
    for package in ("runner.page", *(f"runner.features.{name}" for name in names)):
        declared = getattr(importlib.import_module(package), "VERBS", {})
        for words, (module, name, above) in declared.items():
            noun, _, command = words.rpartition(" ")
            verb = Verb(verbs[noun or above].heading, module, name, package)
            if noun:
                commands.setdefault(noun, {})[command] = verb
            else:
                verbs[words] = verb
                order.insert(order.index(above) + 1, words)
    return {verb: verbs[verb] for verb in order}, commands


VERBS, _COMMANDS = _with_features()

_COMPLETE = "_RUNNER_COMPLETE"
_BROKEN_PIPE = 141
# Importing the SDKs creates many long-lived objects, so fewer garbage collections save 0.1 s.
_GC_OBJECTS = 50_000


class _Verbs(TyperGroup):
    """Lists commands in the order of VERBS; Typer would list the nouns last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  as Typer calls it
        return [verb for verb in VERBS if verb in self.commands]

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Print `interrupted` on Ctrl-C, unless the command handles it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            Output().note("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def build_app(verbs: Sequence[str] = tuple(VERBS), *, listed: bool = False) -> typer.Typer:
    """Return the command line with the given verbs. Other modules are not imported.

    With `listed`, verbs have no options, which would take a quarter of the time of `runner --help`.
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
        heading, found = VERBS[verb].heading, VERBS[verb].load()
        nested = found if isinstance(found, typer.Typer) else None
        if listed:
            text = nested.info.help if nested else found.__doc__
            app.command(verb, help=text, rich_help_panel=heading)(_no_options)
        elif nested is None:
            app.command(verb, rich_help_panel=heading)(found)
        else:
            _add_commands(nested, _COMMANDS.get(verb, {}))
            app.add_typer(nested, name=verb, rich_help_panel=heading, no_args_is_help=True)
    if not listed:
        _join_lines(app)
    return app


def _add_commands(noun: typer.Typer, commands: Mapping[str, Verb]) -> None:
    known = {each.name for each in (*noun.registered_commands, *noun.registered_groups)}
    for name, verb in commands.items():
        if name in known:  # this process has built the command line before
            continue
        found = verb.load()
        if isinstance(found, typer.Typer):
            noun.add_typer(found, name=name)
        else:
            noun.command(name)(found)


def _join_lines(app: typer.Typer) -> None:
    """Join the lines of each paragraph of a docstring, because Typer joins only the first one."""
    for command in app.registered_commands:
        text = inspect.cleandoc(
            command.help or (command.callback and command.callback.__doc__) or ""
        )
        paragraphs = text.split("\n\n")
        command.help = "\n\n".join(each.replace("\n", " ") for each in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def _no_options() -> None:
    """Replace a verb that is only listed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    gc.set_threshold(_GC_OBJECTS, 20, 100)
    open_closed_streams()
    start_output()
    os.environ.update(exclude_loopback(os.environ))  # for every process that a verb starts
    words, debug = split_debug(sys.argv[1:] if arguments is None else arguments)
    words = normalize_words(words)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()  # the reader has closed the pipe
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as err:  # noqa: BLE001  print any error as text and exit with a code
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
        # Typer exits with 1 on a broken pipe, but our exit code 1 means that the run failed.
        if isinstance(err.__context__, BrokenPipeError):
            raise err.__context__ from None
        raise
    return code if isinstance(code, int) else ExitCode.OK


def _check_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as err:
        raise RunnerError(
            "R-FOLDER-GONE", "the current folder was deleted", fix="change to an existing folder"
        ) from err


def _root() -> None:
    """Train on Azure Batch spot nodes, or on a local Azure Batch, with the same command.

    To begin, run `runner train mnist`, or `runner train SCRIPT` with a script of yours. Every
    command accepts --debug, which prints the traceback of an error.
    """


def _report(err: Exception, words: Sequence[str], *, debug: bool) -> int:
    if debug:
        import traceback

        show_trace("".join(traceback.format_exception(err)))
    if isinstance(err, typer.Abort):
        return ExitCode.INTERRUPTED
    expected = (
        err
        if isinstance(err, RunnerError)
        else usage_error(err, words)
        or _too_long(err)
        or _disk_full(err)
        or _missing_package(err)
        or _bug(err)
    )
    # During completion, an error would appear in the line that the user types.
    if expected.what and not os.environ.get(_COMPLETE, "").startswith("complete_"):
        show_error(expected, as_json=wants_json(words))
    return expected.exit_code


def _too_long(err: Exception) -> RunnerError | None:
    """Return an error for a path that is too long for the file system, else None."""
    if not isinstance(err, OSError) or err.errno != errno.ENAMETOOLONG:
        return None
    return RunnerError(
        "R-PATH-LONG",
        f"file name too long: {str(err.filename)[:60]}…",
        why="the file system does not accept names of that length",
        fix="use a shorter path",
    )


def _disk_full(err: Exception) -> RunnerError | None:
    """Return an error for a full disk, also of standard output, else None."""
    if not isinstance(err, OSError) or err.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    if err.filename and (named := full_disk(Path(os.fsdecode(err.filename)).absolute())):
        return named
    return RunnerError(
        "R-DISK-FULL",
        f"cannot write {err.filename or 'the output'}",
        why=str(err.strerror),
        fix="free space on the disk, or redirect standard output to another disk",
    )


def _missing_package(err: Exception) -> RunnerError | None:
    """Return an error for a package that is not installed, else None."""
    if not isinstance(err, ModuleNotFoundError):
        return None
    from runner.flows.extras import missing_package  # loads the metadata of packages

    return missing_package(err)


def _bug(err: Exception) -> RunnerError:
    import traceback

    frames = traceback.extract_tb(err.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return RunnerError(
        "R-BUG",
        f"{type(err).__name__}: {err}",
        why=f"this is a bug in runner{where}, not in your input",
        fix="report the output of the command with --debug, and the archive of `runner bug-report`",
    )
