"""Every command that a text of the product names exists, and parses."""

from __future__ import annotations

import re
import shlex

import pytest

from runner.cli.main import _FOREIGN_VERBS
from runner.flows.extras import DISTRIBUTION, install_command
from tests.unit.command_lines import (
    OTHERS,
    commands_in,
    hidden_commands,
    known_options,
    parse,
    texts,
)
from tests.unit.source_tree import ROOT, assert_none, project

# Values for placeholders: a number is also a name; some arguments are durations, or omitted.
_SAMPLES = ("3", "2h", "", "json", "--port 3", "show", "train 3")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def _filled(command: str, sample: str) -> list[str]:
    return shlex.split(_PLACEHOLDER.sub(lambda _: sample, command))


def _refusal_of_runner(command: str) -> str:
    said = ""
    for sample in _SAMPLES:
        try:
            parse(_filled(command, sample))
        except LookupError as err:
            said = said or str(err)
        else:
            return ""
    return said


def _refusal(command: str) -> str:
    """Return why a command cannot be run as it is written, or nothing."""
    words = _filled(command.replace("{kind}", "job"), "3")
    if words[0] == "runner":
        return _refusal_of_runner(command)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return "" if re.search(rf"^{words[1]}:", makefile, re.MULTILINE) else "no such target"
    if words[0] == "pip" or words[1:3] == ["-m", "pip"]:
        return _refusal_of_pip(command)
    name = next((" ".join(words[:n]) for n in range(5, 1, -1) if " ".join(words[:n]) in OTHERS), "")
    if not name:
        return "not in the table of commands"
    options = {word for word in words if word.startswith("-")}
    return f"unknown: {', '.join(unknown)}" if (unknown := options - OTHERS[name]) else ""


def _refusal_of_pip(command: str) -> str:
    named = re.fullmatch(
        r"(?:\S+ -m )?pip install (?:--\S+ )*'?([\w-]+)(?:\[([\w-]+)\])?'?", command
    )
    if named is None:
        return "not `pip install NAME`"
    extras = {DISTRIBUTION: project()["project"]["optional-dependencies"], **_OF_OTHERS}
    if named[1] not in extras:
        return f"not our distribution: {named[1]}"
    return "" if named[2] is None or named[2] in extras[named[1]] else f"no extra {named[2]}"


# `batch-emulator` is a distribution of its own, and `cryptography` is one of its requirements.
_OF_OTHERS = {"batch-emulator": ("azure-names",), "cryptography": ()}


def test_every_command_of_a_text_parses() -> None:
    found = [(each, command) for each in texts() for command in commands_in(each.text)]
    assert len(found) > 180
    refused = [
        f"{each.where}: {command}: {why}"
        for each, command in found
        if not command.startswith("pip install {")  # the next test parses it
        if (why := _refusal(command))
    ]
    assert_none(refused, "commands that cannot be run as they are written")


def test_commands_suggested_for_other_programs_parse() -> None:
    named = [f"runner {command}" for command in _FOREIGN_VERBS.values()]
    found = [command for text in named for command in commands_in(text)]
    assert len(found) > len(named)
    assert_none(filter(_refusal, found), "commands that cannot be run as they are written")


def test_commands_within_a_sentence_are_quoted() -> None:
    hidden = [f"{each.where}: {part}" for each in texts() for part in hidden_commands(each.text)]
    assert_none(hidden, "write them in backquotes, so that one sees where they end")


def test_options_of_a_sentence_exist() -> None:
    # Options of all verbs, and of bash, timeout and jupyter.
    known = (
        known_options()
        | {"--help", "--debug", "--norc", "--preserve-status"}
        | {"--ip", "--allow-root"}
    )
    unknown: list[str] = []
    for where, text in texts():
        if where.startswith("runner/") and not where.startswith(_SCRIPTS):
            rest = text
            for command in commands_in(text):
                rest = rest.replace(command, "")
            named = re.findall(r"(?:[a-z],?) (--[a-z][a-z-]+)", rest)
            unknown += [f"{where}: {option}" for option in named if option not in known]
    assert_none(unknown, "options that no verb has")


_SCRIPTS = (
    "runner/recipes/",
    "runner/node/",
    "runner/azure/batch/translate.py",
)  # with options of their own and of other programs


def test_install_command_names_our_distribution() -> None:
    assert project()["project"]["name"] == DISTRIBUTION
    for extra in project()["project"]["optional-dependencies"]:
        assert _refusal_of_pip(install_command(extra)) == ""
        assert _refusal_of_pip(install_command(extra, upgrade=True)) == ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("runner trian mnist", "trian"),
        ("runner skus --refresh --regoin {x}", "NoSuchOption"),
        ("runner models rm", "MissingParameter"),
        ("az batch job enable --id 3", "unknown: --id"),
        ("make previews", "no such target"),
        ("pip install 'runner[local]'", "not our distribution: runner"),
        (install_command("infar"), "no extra infar"),
    ],
)
def test_command_that_does_not_exist_is_refused(command: str, why: str) -> None:
    assert why in _refusal(command)
