"""Arguments and options that several verbs share, and settings and connections from them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import autocomplete
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.core.home import HomePaths, disk_reserve
from runner.core.recipe.options import OPTIONS, RunOptions, is_repeatable, parse_env
from runner.core.units import parse_duration_flag
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.settings import Settings


_RUN: Any = typer.Argument(
    metavar="RUN",
    help="Run ID, unique prefix, or @last.",
    autocompletion=autocomplete.complete_run,
)
RunArgument = Annotated[str, _RUN]
RunOrNoneArgument = Annotated[str | None, _RUN]
_RUN_OR_GROUP: Any = typer.Argument(
    metavar="RUN",
    help="ID of a run, sweep or group, unique prefix, or @last.",
    autocompletion=autocomplete.complete_run_or_group,
)
RunOrGroupArgument = Annotated[str, _RUN_OR_GROUP]
RunOrGroupOrNoneArgument = Annotated[str | None, _RUN_OR_GROUP]
TargetOption = Annotated[
    str | None,
    typer.Option(
        help="Where runs execute: local or azure.",
        show_default="local, unless the settings name another",
        autocompletion=autocomplete.complete_target,
    ),
]
StackOption = Annotated[
    str | None,
    typer.Option(
        help="Pulumi stack of the Azure environment.",
        show_default="dev, unless the settings name another",
        autocompletion=autocomplete.complete_stack,
    ),
]
TeamOption = Annotated[
    str | None,
    typer.Option(
        help="Team of the stack whose runs, models and pools to use.",
        show_default="the shared part of the stack",
        autocompletion=autocomplete.complete_team,
    ),
]
OutputDirOption = Annotated[
    Path | None, typer.Option(help="Folder for downloaded outputs.", show_default="./outputs")
]
DownloadOption = Annotated[
    bool, typer.Option("--download/--no-download", help="Download the outputs to this machine.")
]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Submit and return at once.")]
PlotOption = Annotated[Path | None, typer.Option(help="Write a chart to FILE.svg or FILE.html.")]
ChartOption = Annotated[
    bool | None,
    typer.Option("--chart/--no-chart", help="Draw charts in text.", show_default="on a terminal"),
]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]


def open_settings(
    target: str | None,
    stack: str | None,
    *,
    team: str | None = None,
    pool: str | None = None,
    output_dir: Path | None = None,
) -> Settings:
    """Return the settings with the options of the command line applied."""
    from runner.core.settings import load_call_settings

    given = {"target": target, "stack": stack, "team": team}
    return load_call_settings({**given, "pool": pool, "output_dir": output_dir})


class Invocation:
    """The target, the stack, the team and the output format that a command was called with."""

    def __init__(
        self, target: str | None, stack: str | None, team: str | None, output: OutputFormat
    ) -> None:
        self.out = Output(output)
        self._target, self._stack, self._team = target, stack, team
        self.until_end = ExitStack()  # closed at the end of the command

    @property
    def target_words(self) -> list[str]:
        """Return the options with which another command has the same target."""
        options = {"--target": self._target, "--stack": self._stack, "--team": self._team}
        return [word for name, value in options.items() if value for word in (name, value)]

    def settings(self, *, pool: str | None = None, output_dir: Path | None = None) -> Settings:
        """Return the settings with the options of the command line applied."""
        return open_settings(
            self._target, self._stack, team=self._team, pool=pool, output_dir=output_dir
        )

    def connect(self) -> Connection:
        """Connect to the services of the target, which have to be running."""
        return self.open()[1]

    def open(self, output_dir: Path | None = None) -> tuple[Settings, Connection]:
        """Return the settings, and a connection as `connect` does."""
        from runner.azure.auth.credentials import connect

        settings = self.settings(output_dir=output_dir)
        return settings, connect(settings)

    def open_to_delete(self) -> tuple[Settings, Connection]:
        """Do the same as `open`, for a command that ends or deletes something.

        If the disk of the local services is full, the command uses their reserve.
        """
        settings, connection = self.open()
        self.until_end.enter_context(disk_reserve(HomePaths(settings.home)))
        return settings, connection


def with_parameters(
    command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Return a command for which Typer finds these parameters; options are keyword-only."""
    kind = inspect.Parameter.KEYWORD_ONLY
    found = [each if each.name == "call" else each.replace(kind=kind) for each in parameters]
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in found}
    return command


def on_target(verb: Callable[..., None], *, formats: bool = True) -> Callable[..., None]:
    """Add `--target`, `--stack`, `--team` and `-o` to a command, which gets an Invocation.

    Without `formats`, the command has no `-o`.
    """

    @functools.wraps(verb)
    def command(
        target: str | None,
        stack: str | None,
        team: str | None,
        output: OutputFormat = OutputFormat.TABLE,
        **options: object,
    ) -> None:
        call = Invocation(target, stack, team, output)
        with call.until_end:
            verb(call, **options)

    _, *own = inspect.signature(verb, eval_str=True).parameters.values()
    shared = (
        ("target", TargetOption, None),
        ("stack", StackOption, None),
        ("team", TeamOption, None),
        ("output", OutputOption, OutputFormat.TABLE),
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(n, kind, annotation=a, default=d) for n, a, d in shared]
    return with_parameters(command, [*own, *(added if formats else added[:-1])])


# For a command that prints lines, which no program reads as a document.
on_target_as_text = functools.partial(on_target, formats=False)


def _hint(name: str) -> Any:
    """Return the type of what a person types for an option of a run: several values are a list."""
    kind = RunOptions.__dataclass_fields__[name].type
    hints = {"int | None": int | None, "Path | None": Path | None}
    return hints.get(kind, list[str] | None if is_repeatable(name) else str | None)


def _parameter(name: str, hint: Any, declared: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=Annotated[hint, declared], default=None)


@functools.cache  # several commands have the same options
def _parameters(name: str, **wording: str) -> tuple[inspect.Parameter, ...]:
    """Return the parameter of an option, that of the flags for its choices, and of its old flag.

    `wording` replaces attributes of its RunOption.
    """
    option = OPTIONS[name]._replace(**wording)  # type: ignore[arg-type]
    text = option.help
    shown: dict[str, Any] = {"metavar": option.metavar, "show_default": option.unset or False}
    if option.completes:
        shown["autocompletion"] = getattr(autocomplete, f"complete_{option.completes}")
    if not option.flag:
        return (_parameter(name, _hint(name), typer.Argument(help=text, **shown)),)
    flags = [option.flag, *filter(None, [option.short])]
    if is_repeatable(name):
        text = f"{text.removesuffix('.')}; can be repeated."
    found = [_parameter(name, _hint(name), typer.Option(*flags, help=text, **shown))]
    if option.choice_flags:
        short = f"Short for {option.flag} {' or '.join(option.choice_flags.values())}."
        pair = typer.Option("/".join(option.choice_flags), help=short)
        found.append(_parameter(f"{name}_flag", bool | None, pair))
    if option.old_flag:
        old = typer.Option(option.old_flag, hidden=True)
        found.append(_parameter(f"old_{name}", _hint(name), old))
    return tuple(found)


def warn_renamed(out: Output, old: str, new: str) -> None:
    """Warn of the former name of an option."""
    out.warning(f"{old} is now {new}; the next release will not accept {old}")


def _typed(out: Output, name: str, given: dict[str, Any]) -> Any:
    """Take the parameters of an option from `given`. Return its value, or None."""
    option = OPTIONS[name]
    value, old = given.pop(name), given.pop(f"old_{name}", None)
    if old is not None:
        warn_renamed(out, option.old_flag, option.flag)
        value = old if value is None else value
    on = given.pop(f"{name}_flag", None)
    if on is not None:
        flag, choice = list(option.choice_flags.items())[0 if on else 1]
        if value not in (None, choice):
            raise RunnerError(
                "R-USAGE",
                f"{option.flag} {value} and {flag} exclude each other",
                fix=f"remove {flag}",
            )
        value = choice
    if name == "env" and value:
        return parse_env(value, os.environ)
    if name == "experiment" and value:
        _refuse_variable(option.flag, value)
    return tuple(value) if value and is_repeatable(name) else value


def _refuse_variable(flag: str, experiment: str) -> None:
    """Refuse `-e NAME=VALUE`, a variable in other programs."""
    name, equals, _ = experiment.partition("=")
    if equals and name.isidentifier():
        raise RunnerError(
            "R-USAGE",
            f"invalid {flag} {name}=...: an experiment has no '='",
            why=f"-e is the short form of {flag}, not of --env",
            fix=f"--env {name}=VALUE, or another name of the experiment",
        )


def with_run_options(
    *names: str, **wording: Mapping[str, str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of a run, all if none is named, as the RunOptions `options`.

    The command has an Invocation as its first parameter; apply `on_target` to the result.

    Args:
        names: fields of RunOptions.
        wording: attributes of a RunOption that differ for this command, by field.
    """
    chosen = [name for name in OPTIONS if name in (names or OPTIONS)]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def command(call: Invocation, **given: Any) -> None:
            typed = {name: _typed(call.out, name, given) for name in chosen}
            set_ = {name: value for name, value in typed.items() if value is not None}
            verb(call, options=RunOptions(**set_), **given)

        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(verb, eval_str=True).parameters.values():
            if own.name == "options":
                for name in chosen:
                    parameters += _parameters(name, **wording.get(name, {}))
            else:
                parameters.append(own)
        return with_parameters(command, parameters)

    return decorate


RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Built-in recipe, folder, script or notebook.",
        autocompletion=autocomplete.complete_recipe,
    ),
]


def check_args(args: tuple[str, ...], option: str) -> None:
    """Raise RunnerError unless the arguments of the script follow `--`.

    `option` sets parameters of this command.
    """
    if args and "--" not in sys.argv:
        raise RunnerError(
            "R-ARGUMENTS",
            f"unexpected argument {args[0]!r}",
            why=f"parameters are given with {option}; arguments of the script follow --",
            fix=f"{option} {args[0]}" if "=" in args[0] else "-- " + " ".join(args),
        )


DataOption = Annotated[Path | None, typer.Option(help=OPTIONS["data"].help)]
PoolOption = Annotated[
    str | None,
    typer.Option(
        help=OPTIONS["pool"].help,
        show_default=OPTIONS["pool"].unset or False,
        autocompletion=autocomplete.complete_pool,
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan without submitting anything.")
]
RunChecksOption = Annotated[
    bool,
    typer.Option(
        "--run-checks",
        help="Let --dry-run execute code of the folder: download.py, a generator of trials.",
    ),
]


FailIfStuckOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Cancel the run and exit with code 5 if it is stuck for this time: 15m, 1h.",
    ),
]
EvictOption = Annotated[
    str | None,
    typer.Option(
        metavar="seed=N,mtbf=TIME|FILE",
        help="Evict the node of the run on this machine, at random times or from a trace file.",
    ),
]


def to_stuck_limit_s(fail_if_stuck: str | None, *, detach: bool = False) -> float | None:
    """Return the seconds of `--fail-if-stuck`.

    Raises:
        RunnerError: the text is not a duration, or the run is detached.
    """
    if fail_if_stuck is None:
        return None
    if detach:
        raise RunnerError(
            "R-STUCK-DETACHED",
            "--fail-if-stuck and --detach exclude each other",
            why="only a command that watches the run can cancel it when it is stuck",
            fix=f"remove --detach, or run `runner attach @last --fail-if-stuck {fail_if_stuck}`",
        )
    return parse_duration_flag("fail-if-stuck", fail_if_stuck, "0s", "30d").total_seconds()
