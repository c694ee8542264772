"""A program: run every command of `runner` with --help and once with sample arguments.

It runs with the Python of an installation and prints one JSON object per call. The commands come
from the tree of the command line, so that a new one is called too.
"""

from __future__ import annotations

import contextlib
import enum
import io
import json
import os
import signal
import subprocess
import sys
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import typer.main
from typer.core import TyperOption

from runner.cli.main import build_app
from runner.cli.main import main as run_verb

LIMIT_S = float(os.environ.get("EVERY_VERB_LIMIT_S", "60"))
COMMAND = "import sys; from runner.cli.main import main; sys.exit(main())"
# Options that select a harmless call of a command that needs one of them.
OPTIONS = {
    "preview": ["--offline"],
    "selftest": ["--help"],
    "qualify": ["--help"],
    "monitor": ["--help"],
}


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command that is not a group, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


def sample(parameter: Any) -> str:
    """Return a value that the parser accepts."""
    wanted = parameter.type_descriptor.annotation
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return str(next(iter(wanted)).value)
    if typing.get_origin(wanted) is typing.Literal:
        return str(typing.get_args(wanted)[0])
    return "1" if wanted in (int, float) else "sample"


def arguments(command: Any) -> list[str]:
    """Return sample values of everything that the command requires."""
    words: list[str] = []
    for parameter in command.params:
        if parameter.required:
            if isinstance(parameter, TyperOption):
                words.append(parameter.opts[-1])
            words.append(sample(parameter))
    return words


def call(words: list[str]) -> None:
    """Run a command to its end, or until the limit, and print what happened."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        shown, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        shown, _ = process.communicate()
        process.returncode = 0  # it served until it was stopped
    print(json.dumps({"words": words, "code": process.returncode, "shown": shown}), flush=True)


def show_help(path: Sequence[str]) -> None:
    """Print the help of a command, in this process: a start for each would take a minute."""
    words = [*path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(shown):
        code = run_verb(words)
    print(json.dumps({"words": words, "code": code, "shown": shown.getvalue()}), flush=True)


def main() -> None:
    """Call every command."""
    for path, command in leaves(typer.main.get_command(build_app())):
        show_help(path)
        call([*path, *OPTIONS.get(" ".join(path), ()), *arguments(command)])


if __name__ == "__main__":
    main()
