"""Flags about where and when a run goes, which override the recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.completing import complete_run

if TYPE_CHECKING:
    from runner.core.recipe_flags import RecipeFlags

GpuOption = Annotated[
    int | None,
    typer.Option("--gpu", metavar="N", min=0, help="At least N GPUs.", show_default=False),
]
NodesOption = Annotated[
    int | None,
    typer.Option("--nodes", metavar="N", min=1, help="On N nodes at once.", show_default=False),
]
SpotOption = Annotated[
    bool | None,
    typer.Option("--spot/--dedicated", help="Only on nodes of this kind.", show_default=False),
]
PriorityOption = Annotated[
    int | None,
    typer.Option("--priority", help="-1000 to 1000; higher goes first.", show_default=False),
]
AfterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="RUN",
        help="Start once it succeeded.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
MaxTimeOption = Annotated[
    str | None,
    typer.Option("--max-time", metavar="TIME", help="90m, 2h, 1d.", show_default=False),
]
RetriesOption = Annotated[
    int | None,
    typer.Option("--retries", help="Further attempts after a failure.", show_default=False),
]


def to_flags(
    *,
    gpu: int | None,
    nodes: int | None,
    spot: bool | None,
    priority: int | None,
    after: list[str] | None,
    max_time: str | None,
    retries: int | None,
) -> RecipeFlags:
    """What was typed, as the planner takes it."""
    from runner.core.recipe_flags import RecipeFlags

    capacity = None if spot is None else "spot" if spot else "dedicated"
    return RecipeFlags(gpu, capacity, priority, tuple(after or ()), max_time, retries, nodes=nodes)
