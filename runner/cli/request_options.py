"""Options that say what is to run; `where_options` has where and when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runner.cli.completing import complete_param, complete_pool, complete_recipe

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A built-in recipe, a folder, or a script.",
        autocompletion=complete_recipe,
    ),
]
ArgsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", help="Passed to the script.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="NAME=VALUE",
        help="Set a parameter.",
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
        help="A path, https://…, blob:container/prefix, run:RUN/path, dataset: or share:.",
        show_default=False,
    ),
]
ExperimentOption = Annotated[
    str | None,
    typer.Option("--experiment", "-e", help="Group of runs.", show_default="the recipe's name"),
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        "--pool", help="Pool to run on.", show_default=False, autocompletion=complete_pool
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")]
