"""Actions: every verb that changes something is on the page, and every command is a valid one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import runner.page
from runner.cli.main import build_app
from runner.core.settings import load_settings
from runner.page.actions import ACTIONS
from runner.page.commands import StartedCommand, shown_argv
from runner.page.forms import Values
from runner.page.rendering import templates
from runner.page.source import Source

READS = frozenset((
    "ps", "show", "why", "events", "metrics", "logs", "attach", "experiments.ls",
    "notify.ls", "notify.show",
    "experiments.show", "cost.show", "cost.whatif", "budget.ls",
    "sweep.ls", "sweep.show", "schedule.ls", "schedule.show",
    "files.ls", "data.ls", "models.ls", "models.show", "local.status",
    "local.env", "preview", "check", "pool.ls", "pool.show", "pool.nodes",
    "pool.autoscale.evaluate", "pool.autoscale.last", "pool.autoscale.lint",
    "pool.autoscale.simulate", "image.ls", "image.registry", "recipe.ls", "recipe.check",
    "recipe.show", "config.show", "explain", "version",
))  # fmt: skip
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "page.md"
# `| `init` | asks in a terminal |`: the verbs that are no action of the page, each with the reason.
_ROW = re.compile(r"^\| ((?:`[a-z -]+`(?:, )?)+) +\| ([a-z].+?) +\|$", re.MULTILINE)


def not_on_the_page() -> dict[str, str]:
    """Return the verbs of the guide's table of what only a terminal does, with their reasons."""
    return {
        name.replace(" ", "."): reason
        for names, reason in _ROW.findall(GUIDE.read_text(encoding="utf-8"))
        for name in re.findall("`([^`]+)`", names)
    }


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


VERBS = dict(leaves(get_command(build_app())))


def verb_of(words: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Return the longest beginning of words that is a verb."""
    lengths = range(len(words), 0, -1)
    return next(tuple(words[:length]) for length in lengths if tuple(words[:length]) in VERBS)


def test_every_verb_that_changes_something_is_an_action_or_has_a_reason() -> None:
    acts = {".".join(verb_of(action.words)) for action in ACTIONS.values()}
    left = not_on_the_page()
    assert acts | READS | set(left) == {".".join(path) for path in VERBS}
    assert not acts & READS
    assert not acts & set(left)
    assert not READS & set(left)


def filled(name: str) -> dict[str, str]:
    """Return a value for all that an action takes."""
    action = ACTIONS[name]
    values = dict.fromkeys(action.names, "1")
    for field in action.fields:
        values[field.name] = next(
            filter(None, field.choices), "on" if field.kind == "check" else "1"
        )
    for option in action.options:
        values.setdefault(f"{option}x" if option.endswith(".") else option, "1")
    return values


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_command_of_an_action_is_one_of_the_command_line(name: str) -> None:
    action = ACTIONS[name]
    parsed = [action.argv(filled(name))]
    if action.loss:
        parsed.append(action.loss_argv(filled(name)))
    for argv in parsed:
        path = verb_of(argv)
        known = {
            each for param in VERBS[path].params for each in (*param.opts, *param.secondary_opts)
        }
        takes = action.takes if argv is parsed[0] or not action.loss else action.loss.takes
        assert not takes or f"--{takes}" in known
        assert ("--output" in known) == (argv is not parsed[0] or action.prints_json)
        VERBS[path].make_context("runner", [*argv[len(path) :]])  # refuses unknown options


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_every_action_has_a_button(name: str) -> None:
    folder = Path(runner.page.__file__).parent
    texts = [path.read_text() for path in (folder / "templates").glob("*.html")]
    assert ACTIONS[name].page or any(
        f"/act/{name}" in text or f'"{name}"' in text for text in texts
    )


@pytest.mark.parametrize("value", ["a b", "$HOME", "'", '"', "`id`", "a\nb", "*", "!x", "~", "-x"])
@pytest.mark.parametrize("name", ["rm", "train", "pool-formula", "models-alias", "export"])
def test_copied_command_is_read_by_a_shell_as_it_is_executed(
    name: str, value: str, tmp_path: Path
) -> None:
    source = Source(load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path)}))
    action, values = ACTIONS[name], dict.fromkeys(filled(name), value)
    argv = shown_argv(source, action, values)
    job = StartedCommand(1, action, argv, argv, values)
    assert shlex.split(job.command) == ["runner", *argv]
    shell = subprocess.run(
        ["bash", "-c", f"runner() {{ printf '%s\\0' \"$@\"; }}\n{job.command}"],
        capture_output=True, text=True, check=True, env={"HOME": "/home"},
    )  # fmt: skip
    assert shell.stdout.split("\0")[:-1] == argv


@pytest.mark.parametrize(
    ("document", "address"),
    [
        ({"run_id": "train-20261129-021651-qj8e"}, "/runs/train-20261129-021651-qj8e"),
        ([{"run_id": "a/b"}, {"run_id": "c"}], "/runs/a%2Fb"),
        ({"sweep": "s"}, "/sweeps/s"),
        ({"schedule": "nightly"}, "/schedules/nightly"),
        ({"name": "cats", "version": 3}, "/models/cats"),
        ({"error": {"code": "R-RETRY-STATE", "what": "cannot retry"}}, ""),
        ([], ""),
        ("text", ""),
        ({"run_id": None}, ""),
        (None, ""),
    ],
)
def test_result_of_any_form_is_shown(document: object, address: str) -> None:
    output = "Traceback ..." if document is None else json.dumps(document)
    values: Values = {"run": "x"}
    job = StartedCommand(
        1, ACTIONS["retry"], ["retry", "x"], [], values, output=output, exit_code=2
    )
    assert [link for link, _ in job.links][:1] == ([address] if address else [])
    template = templates().get_template("job.html")
    context = template.new_context({"job": job, "after": "/runs"})
    shown = "".join(template.blocks["view"](context))
    assert "the command was refused" in shown
    assert not address or f'href="{address}"' in shown
