"""What was typed: the words that every command takes, and mistakes in them as our errors."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from runner.core.errors import RunnerError

_DEBUG = "--debug"
# Commands that take words of other programs: why an option is not known, and how to go on.
_OTHERS_OPTIONS = {
    "runner train": (
        "parameters of a recipe are set with --set; a script's own arguments follow --",
        "--set {name}=VALUE, or runner train --help",
    ),
    "runner exec": (
        "words that begin with - are the command's own only after --",
        "runner exec RUN -- COMMAND -{name}",
    ),
}
# What pydantic says of a value that Typer gave it.
_NUMBERS = (
    (re.compile(r"Input should be a valid integer, .*"), "it is a whole number, like 3"),
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"the least is \1"),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"the most is \1"),
)
# What other programs call it, and what it is here.
_ELSEWHERE = {
    **dict.fromkeys(("run", "fit"), "train RECIPE"),
    **dict.fromkeys(("list", "ls", "runs", "jobs", "history"), "ps"),
    **dict.fromkeys(("stop", "kill", "rm", "delete", "terminate", "abort"), "cancel RUN"),
    **dict.fromkeys(("status", "describe", "info"), "show RUN; runner local status"),
    **dict.fromkeys(("init", "new", "create"), "recipe new NAME"),
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
_SAID = {"--version": ["version"], "-V": ["version"]}


def as_meant(words: Sequence[str]) -> list[str]:
    """Spellings that other programs have taught: `runner --version`, `runner help train`."""
    if not words:
        return ["--help"]
    if words[0] == "help":
        return [*words[1:], "--help"]
    if words[0] in _COMPLETION:  # Typer's and pip's own spelling
        return ["completion", *words[1:], *_COMPLETION[words[0]]]
    return [*_SAID.get(words[0], words[:1]), *words[1:]]


def without_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere before `--`; what follows `--` belongs to the script."""
    own = own_words(words)
    kept = [word for word in own if word != _DEBUG]
    asked = len(kept) < len(own) or os.environ.get("RUNNER_DEBUG", "") not in {"", "0"}
    return [*kept, *words[len(own) :]], asked


def wants_json(words: Sequence[str]) -> bool:
    """Whether stdout was asked to be JSON; read here since the mistake may be in the words."""
    text = " ".join(own_words(words))
    return re.search(r"(^|\s)(-o\s*=?|--output[ =])json(\s|$)", text) is not None


def own_words(words: Sequence[str]) -> Sequence[str]:
    """What is ours, before `--`."""
    return words[: words.index("--")] if "--" in words else words


def usage_error(err: Any, words: Sequence[str]) -> RunnerError | None:
    """Typer's own errors, in our form; None where it is none."""
    if not hasattr(err, "format_message"):
        return None
    message = " ".join(str(err.format_message()).replace("Value error, ", "").split())
    for raw, ours in _NUMBERS:
        message = raw.sub(ours, message)
    if type(err).__name__ == "NoArgsIsHelpError":  # the help text was printed on the way
        return RunnerError("R-USAGE", message, fix="name one of the commands above")
    if words and message.startswith(f"No such command '{words[0]}'") and words[0] in _ELSEWHERE:
        fix = f"runner {_ELSEWHERE[words[0]]}"
        return RunnerError("R-USAGE", f"No such command '{words[0]}'", fix=fix)
    context = getattr(err, "ctx", None)
    command = context.command_path if context else " ".join(["runner", *words[:1]])
    option = str(getattr(err, "option_name", "") or "")
    if type(err).__name__ == "NoSuchOption" and command in _OTHERS_OPTIONS:
        import difflib

        # Typer's own guesses are far: a parameter would be taken for an option.
        near = difflib.get_close_matches(option, err.possibilities or (), n=1, cutoff=0.8)
        why, fix = _OTHERS_OPTIONS[command]
        fix = f"did you mean {near[0]}?" if near else fix.format(name=option.lstrip("-"))
        return RunnerError("R-USAGE", f"No such option: {option}", why=why, fix=fix)
    return RunnerError("R-USAGE", message.rstrip("."), fix=f"{command} --help")
