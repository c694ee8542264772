"""Collect the commands that texts of the product name, and parse them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from typer.main import get_command

from runner.cli.main import VERBS, build_app
from tests.unit.source_tree import nodes, product, shown, sources

# Commands of other programs that our texts name, each with its options. Sources:
# learn.microsoft.com/cli/azure/reference-index, pulumi.com/docs/iac/cli and
# mlflow.org/docs/latest/cli.html, read 2026-11-23.
OTHERS: dict[str, frozenset[str]] = {
    "az login": frozenset({"--tenant"}),
    "az account list": frozenset({"--all", "-o"}),
    "az account list-locations": frozenset({"-o"}),
    "az account show": frozenset({"-o", "--output", "--query"}),
    "az ad signed-in-user show": frozenset({"--query", "-o"}),
    "az ad user show": frozenset({"--id", "--query", "-o"}),
    "az cloud set": frozenset({"--name"}),
    "az cloud show": frozenset({"--query"}),
    "az keyvault secret show": frozenset({"--id", "--query", "-o"}),
    "az identity show": frozenset({"--name", "--resource-group", "--query", "--output"}),
    "az batch account list": frozenset({"-o"}),
    "az batch account show": frozenset({"--query"}),
    "az group list": frozenset({"-o"}),
    "az storage account list": frozenset({"-o"}),
    "az network vnet subnet update": frozenset(
        {"--resource-group", "--vnet-name", "--name", "--service-endpoints"}
    ),
    "az network private-dns link": frozenset(
        {"--name", "--resource-group", "--zone-name", "--registration-enabled", "--virtual-network"}
    ),
    "az resource show": frozenset({"--ids"}),
    "az role assignment create": frozenset(
        {"--role", "--scope", "--assignee-principal-type", "--assignee-object-id"}
    ),
    "az storage account network-rule add": frozenset(
        {"--account-name", "--resource-group", "--ip-address"}
    ),
    "az storage account show": frozenset({"--query"}),
    "az lock list": frozenset({"-o"}),
    "az monitor activity-log list": frozenset({"--status", "--offset", "-o"}),
    "az role assignment list": frozenset({"--all", "--assignee", "-o"}),
    "az provider register": frozenset({"--namespace", "--wait"}),
    "az batch pool supported-images list": frozenset({"-o"}),
    "az batch pool create": frozenset(
        {"--id", "--vm-size", "--target-dedicated-nodes", "--image", "--node-agent-sku-id"}
    ),
    "az batch pool resize": frozenset({"--pool-id", "--abort"}),
    "az batch pool delete": frozenset({"--pool-id", "--yes"}),
    "az batch pool autoscale disable": frozenset({"--pool-id"}),
    "az batch pool autoscale enable": frozenset({"--pool-id", "--auto-scale-formula"}),
    "az batch job create": frozenset({"--id", "--pool-id"}),
    "az batch job delete": frozenset({"--job-id", "--yes"}),
    "az batch job disable": frozenset({"--job-id", "--disable-tasks"}),
    "az batch job enable": frozenset({"--job-id"}),
    "az batch job stop": frozenset({"--job-id"}),
    "az batch job terminate": frozenset({"--job-id"}),
    "az batch job-schedule create": frozenset(
        {
            *("--id", "--pool-id", "--recurrence-interval", "--job-manager-task-id"),
            "--job-manager-task-command-line",
        }
    ),
    **dict.fromkeys(
        (f"az batch job-schedule {verb}" for verb in ("stop", "disable", "enable", "delete")),
        frozenset({"--job-schedule-id", "--yes"}),
    ),
    "az batch node reboot": frozenset({"--pool-id", "--node-id", "--node-reboot-option"}),
    "az batch node delete": frozenset({"--pool-id", "--node-list"}),
    "az batch node scheduling disable": frozenset(
        {"--pool-id", "--node-id", "--node-disable-scheduling-option"}
    ),
    "az batch node scheduling enable": frozenset({"--pool-id", "--node-id"}),
    "az batch task create": frozenset({"--job-id", "--task-id", "--command-line"}),
    **dict.fromkeys(
        (f"az batch task {verb}" for verb in ("stop", "reactivate", "delete")),
        frozenset({"--job-id", "--task-id", "--yes"}),
    ),
    "mlflow experiments restore": frozenset({"--experiment-id"}),
    "pulumi stack change-secrets-provider": frozenset({"--stack"}),
    "pulumi cancel": frozenset({"--stack"}),
    "pulumi config set": frozenset({"--stack"}),
    "pulumi destroy": frozenset({"--stack"}),
    "pulumi login": frozenset(),
}
_PROGRAMS = ("runner", "pip", "make", "az", "pulumi", "mlflow")
# A command must be quoted or a separate clause, so that its end is visible.
_QUOTED = re.compile(r"`([^`\n]+)`")
_CLAUSE = re.compile(r"; |, or |, then | or | then |: |, (?=runner )|   |\n| \(|\)")
_BEFORE = re.compile(r"^(?:run|use|is|answer|with) ")


class Text(NamedTuple):
    """A text of the sources; each placeholder of an f-string is `{expression}`."""

    where: str
    text: str


@functools.cache
def texts() -> tuple[Text, ...]:
    """Return every text of the product, without docstrings; parts of f-strings are not separate."""
    found: list[Text] = []
    for path in sources(*product()):
        skipped = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        for node in nodes(path):
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(inner) for inner in ast.walk(node) if inner is not node}
        found += [
            Text(f"{shown(path)}:{getattr(node, 'lineno', 0)}", text)
            for node in nodes(path)
            if id(node) not in skipped and (text := rendered(node))
        ]
    return tuple(found)


def rendered(node: ast.AST) -> str | None:
    """Return a string constant or an f-string as text, else None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else _placeholder(part)
            for part in node.values
        )
    return None


def _placeholder(part: ast.expr) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return "{" + re.sub(r"[^\w.]", "", ast.unparse(value)) + "}"


def commands_in(text: str) -> Iterator[str]:
    """Yield the commands in a text that are quoted or a separate clause."""
    text = text.replace("\\\n", " ")  # a command of several lines
    for clause in (*_QUOTED.findall(text), *_CLAUSE.split(_QUOTED.sub("`", text))):
        for part in clause.split(" && "):
            command = _BEFORE.sub("", part.strip()).rstrip(",;.")
            if command.split(" ")[0] in _PROGRAMS and not _is_prose(command):
                yield command


def _is_prose(command: str) -> bool:
    """Return True for prose such as `make it readable` and `runner cannot`."""
    program, _, rest = command.partition(" ")
    word = rest.partition(" ")[0]
    if program == "pip":  # otherwise an argument of a program, or a variable of a script
        return word != "install"
    if program == "make":
        return word in ("a", "it", "the", "{path.name}")
    return not word or (program == "runner" and word in _PROSE)


_PROSE = ("cannot", "creates", "has", "manages", "and")


def hidden_commands(text: str) -> list[str]:
    """Return the commands within a sentence, whose end is not visible."""
    rest = _QUOTED.sub("", text)
    for command in commands_in(rest):
        rest = rest.replace(command, "")
    verbs = "|".join(VERBS)
    known = rf"runner (?:{verbs})|az (?:account|ad|batch|login|provider)|pulumi (?:config|destroy)"
    return re.findall(rf"(?<![\w/.'$(-])(?:{known})\b.{{1,30}}", rest)


@functools.cache
def app() -> Any:
    """Return the command line as Click sees it."""
    return get_command(build_app())


def parse(words: Sequence[str]) -> None:
    """Parse the words of a `runner` command, without running it.

    Raises:
        LookupError: there is no such verb, or `runner` would refuse its options or arguments.
    """
    passed_on = "exec" in words[1:3]  # the words after -- are a required argument
    own = list(words[1 : words.index("--")] if "--" in words and not passed_on else words[1:])
    verb = app().commands[own[0]]
    rest = own[1:]
    if hasattr(verb, "with_default"):
        rest = verb.with_default(rest)
    if rest and hasattr(verb, "commands"):
        verb, rest = verb.commands[rest[0]], rest[1:]
    if rest[-1:] == ["--help"]:  # Click would print it
        return
    try:
        verb.make_context(" ".join(words), rest)
    except Exception as err:  # Typer has a copy of Click, whose classes are private
        raise LookupError(f"{type(err).__name__}: {err}") from err


def known_options() -> set[str]:
    """Return the names of the options of all verbs."""
    found: set[str] = set()
    commands = [app()]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for param in command.params:
            found |= {*param.opts, *param.secondary_opts}
    return found
