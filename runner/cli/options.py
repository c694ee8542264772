"""Arguments and options that several verbs share, and settings and connections from them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import (
    complete_param,
    complete_pool,
    complete_recipe,
    complete_run,
    complete_run_or_group,
    complete_stack,
    complete_target,
    complete_team,
)
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.recipe.overrides import RecipeFlags
    from runner.core.settings import Settings


RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run ID, unique prefix, or @last.",
        autocompletion=complete_run,
    ),
]
_RUN_OR_GROUP: Any = typer.Argument(
    metavar="RUN",
    help="ID of a run, sweep or group, unique prefix, or @last.",
    autocompletion=complete_run_or_group,
)
RunOrGroupArgument = Annotated[str, _RUN_OR_GROUP]
RunOrGroupOrNoneArgument = Annotated[str | None, _RUN_OR_GROUP]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Where runs execute: local or azure.",
        show_default="local, unless the settings name another",
        autocompletion=complete_target,
    ),
]
StackOption = Annotated[
    str | None,
    typer.Option(
        "--stack",
        help="Pulumi stack of the Azure environment.",
        show_default="dev, unless the settings name another",
        autocompletion=complete_stack,
    ),
]
TeamOption = Annotated[
    str | None,
    typer.Option(
        "--team",
        help="Team of the stack whose runs, models and pools to use.",
        show_default="the shared part of the stack",
        autocompletion=complete_team,
    ),
]
OutputDirOption = Annotated[
    Path | None,
    typer.Option("--output-dir", help="Folder for downloaded outputs.", show_default="./outputs"),
]
DownloadOption = Annotated[
    bool, typer.Option("--download/--no-download", help="Download the outputs to this machine.")
]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Submit and return at once.")]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", help="Write a chart to FILE.svg or FILE.html.", show_default=False),
]
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
    from runner.core.settings import load_settings, refuse_stack_of_local

    given = {"target": target, "stack": stack, "team": team}
    flags = {**given, "pool": pool, "output_dir": output_dir}
    settings = load_settings(flags, cwd=Path.cwd(), env=os.environ)
    refuse_stack_of_local(settings, stack)
    return settings


def open_connection(target: str | None, stack: str | None, team: str | None = None) -> Connection:
    """Connect to the services of the target, which have to be running."""
    from runner.azure.auth.credentials import connect

    return connect(open_settings(target, stack, team=team))


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
        return open_connection(self._target, self._stack, self._team)

    def open(self, output_dir: Path | None = None) -> tuple[Settings, Connection]:
        """Return the settings, and a connection as `connect` does."""
        from runner.azure.auth.credentials import connect

        settings = self.settings(output_dir=output_dir)
        return settings, connect(settings)

    def open_to_delete(self) -> tuple[Settings, Connection]:
        """Do the same as `open`, for a command that ends or deletes something.

        If the disk of the local services is full, the command uses their reserve.
        """
        from runner.core.home import HomePaths, disk_reserve

        settings, connection = self.open()
        self.until_end.enter_context(disk_reserve(HomePaths(settings.home)))
        return settings, connection


def on_target(verb: Callable[..., None]) -> Callable[..., None]:
    """Add `--target`, `--stack`, `--team` and `-o` to a command, which gets an Invocation."""

    @functools.wraps(verb)
    def command(
        target: str | None,
        stack: str | None,
        team: str | None,
        output: OutputFormat,
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
    parameters = [each.replace(kind=kind) for each in own]
    parameters += [inspect.Parameter(n, kind, annotation=a, default=d) for n, a, d in shared]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Built-in recipe, folder, script or notebook.",
        autocompletion=complete_recipe,
    ),
]
EntryOption = Annotated[
    str | None,
    typer.Option(
        "--entry",
        metavar="SCRIPT",
        help="Script, notebook or module to run, if RECIPE is a folder.",
        show_default=False,
    ),
]
ArgsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- ARGS",
        help="Arguments of the script; {NAME} stands for the value of a parameter.",
        show_default=False,
    ),
]


def check_args(script_args: list[str] | None, option: str) -> tuple[str, ...]:
    """Return the arguments of the script. Raise RunnerError unless they follow `--`.

    `option` sets parameters of this command.
    """
    if script_args and "--" not in sys.argv:
        first = script_args[0]
        raise RunnerError(
            "R-ARGUMENTS",
            f"unexpected argument {first!r}",
            why=f"parameters are given with {option}; arguments of the script follow --",
            fix=f"{option} {first}" if "=" in first else "-- " + " ".join(script_args),
        )
    return tuple(script_args or ())


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="Parameter of the recipe, or `--NAME VALUE` of a script; can be repeated.",
        show_default=False,
        autocompletion=complete_param,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="File or folder with the data set.", show_default=False),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=SPEC",
        help="Input: a path, https://…, blob:CONTAINER/PREFIX, run:RUN/PATH, dataset:NAME or "
        "share:PATH; can be repeated.",
        show_default=False,
    ),
]


def _refuse_variable(experiment: str | None) -> str | None:
    """Return the value of `-e`, which is a variable in other programs."""
    name, equals, _ = (experiment or "").partition("=")
    if equals and name.isidentifier():
        raise RunnerError(
            "R-USAGE",
            f"invalid --experiment {name}=...: an experiment has no '='",
            why="-e is the short form of --experiment, not of --env",
            fix=f"--env {name}=VALUE, or another name of the experiment",
        )
    return experiment


ExperimentOption = Annotated[
    str | None,
    typer.Option(
        "--experiment",
        "-e",
        help="Experiment that the run belongs to.",
        show_default="the recipe's name",
        callback=_refuse_variable,
    ),
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        "--pool",
        help="Pool to run on.",
        show_default="the first that meets the requirements",
        autocompletion=complete_pool,
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


GpuOption = Annotated[
    int | None,
    typer.Option(
        "--gpu", metavar="N", min=0, help="Minimum number of GPUs per node.", show_default=False
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        metavar="N",
        min=1,
        help="Number of nodes that the run uses at once.",
        show_default=False,
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="NAME",
        help="Launcher of the command: python, torchrun, mpi, horovod, tensorflow, jax, "
        "chainermn or cntk.",
        show_default="python, unless the recipe names another",
    ),
]
ParamsAsOption = Annotated[
    str | None,
    typer.Option(
        "--params-as",
        metavar="FORM",
        help="How the script gets parameters: flags (--name value), key=value or hydra.",
        show_default="hydra if the script uses Hydra or OmegaConf, else flags",
    ),
]
SpotOption = Annotated[
    bool | None,
    typer.Option("--spot/--dedicated", help="Kind of nodes to run on.", show_default=False),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(
        "--priority",
        help="Priority from -1000 to 1000; runs with a higher priority start first.",
        show_default=False,
    ),
]
AfterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="RUN",
        help="Start after this run has succeeded; can be repeated.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Environment variable of the script; without VALUE, its value on this machine; "
        "can be repeated. Not for secrets.",
        show_default=False,
    ),
]
MaxTimeOption = Annotated[
    str | None,
    typer.Option(
        "--max-time",
        metavar="TIME",
        help="Time limit of the command: 90m, 2h, 1d.",
        show_default="none, unless the recipe sets one",
    ),
]
FailIfStuckOption = Annotated[
    str | None,
    typer.Option(
        "--fail-if-stuck",
        metavar="TIME",
        help="Cancel the run and exit with code 5 if it is stuck for this time: 15m, 1h.",
        show_default=False,
    ),
]
EvictOption = Annotated[
    str | None,
    typer.Option(
        "--evict",
        metavar="seed=N,mtbf=TIME|FILE",
        help="Evict the node of the run on this machine, at random times or from a trace file.",
        show_default=False,
    ),
]
RetriesOption = Annotated[
    int | None,
    typer.Option(
        "--retries",
        help="Maximum number of additional attempts after a failure.",
        show_default="0, unless the recipe sets another",
    ),
]
MaxCostOption = Annotated[
    str | None,
    typer.Option(
        "--max-cost",
        metavar="USD",
        help="Cost cap: the job ends before its nodes cost more.",
        show_default=False,
    ),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="GLOB",
        help="Keep these files of the script's folder at any size; can be repeated.",
        show_default=False,
    ),
]


def to_stuck_limit_s(fail_if_stuck: str | None, *, detach: bool = False) -> float | None:
    """Return the seconds of `--fail-if-stuck`.

    Raises:
        RunnerError: the text is not a duration, or the run is detached.
    """
    from runner.core.units import parse_duration_flag

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


def to_flags(
    *,
    gpu: int | None,
    nodes: int | None,
    spot: bool | None,
    priority: int | None,
    after: list[str] | None,
    max_time: str | None,
    retries: int | None,
    keep: list[str] | None,
    max_cost: str | None,
    launcher: str | None = None,
    env: list[str] | None = None,
    params_as: str | None = None,
) -> RecipeFlags:
    """Return the options as the planner expects them."""
    from runner.core.recipe.overrides import RecipeFlags, parse_env

    capacity = None if spot is None else "spot" if spot else "dedicated"
    return RecipeFlags(
        gpu, capacity, priority, tuple(after or ()), max_time, retries, nodes, tuple(keep or ()),
        max_cost, launcher, parse_env(env or (), os.environ), params_as,
    )  # fmt: skip
