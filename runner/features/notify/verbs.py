"""`runner notify`: check the webhook of a recipe, and list what a run has sent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from runner.cli.autocomplete import complete_recipe
from runner.cli.options import Invocation, RunOrGroupArgument, on_target, with_run_options
from runner.cli.ui.output import local_time
from runner.core.recipe.options import RunOptions
from runner.protocol.notifying.documents import WebhookFormat

app = typer.Typer(help="Check the webhook of a recipe; list what a run has sent.")
_RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]",
        help="Recipe with `notify` in its train.yaml; not needed with --notify.",
        show_default=False,
        autocompletion=complete_recipe,
    ),
]


@app.command()
@on_target
@with_run_options("notify")
def show(call: Invocation, options: RunOptions, recipe: _RecipeArgument = None) -> None:
    """Show which events are sent where. The URL is checked, and not printed."""
    from runner.features.notify.webhook import describe_rule, load_rule

    call.out.record(describe_rule(load_rule(recipe, options, Path.cwd()), os.environ))


@app.command("test")
@on_target
@with_run_options("notify")
def send(
    call: Invocation,
    options: RunOptions,
    recipe: _RecipeArgument = None,
    form: Annotated[
        WebhookFormat | None,
        typer.Option(
            "--format",
            help="Form of the message.",
            show_default="that of the recipe, else of the URL's host",
        ),
    ] = None,
) -> None:
    """Send a sample from this machine, so that you can check the URL."""
    from runner.features.notify.webhook import load_rule, send_sample

    rule = load_rule(recipe, options, Path.cwd())
    rule = rule if form is None else replace(rule, format=form)
    form, status = send_sample(rule, os.environ)
    call.out.record({"sent": True, "format": form, "status": status})


@app.command("ls")
@on_target
def list_(call: Invocation, run: RunOrGroupArgument = "@last") -> None:
    """List the notifications of a run or a sweep, and whether they were delivered."""
    from runner.features.notify.webhook import list_sent

    rows = [
        {
            "time": local_time(mark.time) if call.out.as_text else mark.time.isoformat(),
            "event": mark.event,
            "delivered": mark.status is not None,
            "status": mark.status,
            "title": mark.title,
            "error": mark.error,
        }
        for mark in list_sent(call.connect(), run)
    ]
    columns = ("time", "event", "delivered", "title", "error")
    call.out.rows(rows, columns, empty="nothing was sent", spare=("title",))
