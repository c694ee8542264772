"""Record a command: `python -m tools.recording CAST COMMAND ...`. `make recording` calls it.

The command runs for real, in a pseudo-terminal. What it printed, and when, is written as an
asciicast (version 2), which tools/recording.sh renders. Waiting times are shortened, and paths of
this machine are replaced.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 92, 26
LONGEST_PAUSE_S = 1.0
LONGEST_S = 20.0
LAST_PAUSE_S = 6.0
PROMPT = "\x1b[32m$\x1b[0m "

# What would change the output: no colors, and the messages of a make within make.
_UNSET = {"NO_COLOR", "MAKELEVEL", "MAKEFLAGS", "MFLAGS"}

Event = tuple[float, str]


def run(command: Sequence[str]) -> Iterator[Event]:
    """Yield what the command prints in a terminal, and after how many seconds.

    Raises:
        CalledProcessError: the command failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {
        **{name: value for name, value in os.environ.items() if name not in _UNSET},
        "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS),
    }  # fmt: skip
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := _read(ours):
        yield time.monotonic() - started, decoder.decode(data)
    os.close(ours)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the last process closed the terminal
        return b""


def typed(line: str) -> Iterator[Event]:
    """Yield a prompt and a line that is typed after it."""
    yield 0.0, PROMPT
    for number, letter in enumerate(line):
        yield 0.5 + 0.06 * number, letter
    yield 0.9 + 0.06 * len(line), "\r\n"


def shortened(events: Iterable[Event], longest_s: float = LONGEST_S) -> list[Event]:
    """Return the events from second 0 on, without long pauses, in at most `longest_s` seconds."""
    before, now = 0.0, 0.0
    found: list[Event] = []
    for second, text in events:
        now += min(max(second - before, 0.0), LONGEST_PAUSE_S)
        before = second
        found.append((now, text))
    pace = min(1.0, longest_s / now) if now else 1.0
    return [(second * pace, text) for second, text in found]


def hide_paths(text: str) -> str:
    """Replace the paths of this machine in what was printed."""
    home = os.environ.get("RUNNER_HOME")
    named = {ROOT: "runner", Path.home(): "~"}
    if home:
        named = {Path(home).absolute(): "~/.local/share/runner", **named}
    for path, name in named.items():
        text = text.replace(str(path), name)
    return text


def cast(line: str, events: Iterator[Event]) -> str:
    """Return an asciicast of the line, typed, and what it printed."""
    written = list(typed(line))
    start = written[-1][0]
    written += [(start + second, hide_paths(text)) for second, text in shortened(events)]
    written.append((written[-1][0] + LAST_PAUSE_S, PROMPT))
    head = {"version": 2, "width": COLUMNS, "height": ROWS}
    lines = [json.dumps(head), *(json.dumps([round(s, 3), "o", text]) for s, text in written)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command and write the asciicast."""
    parser = argparse.ArgumentParser(description="Record a command in a terminal.")
    parser.add_argument("cast", type=Path, help="the file to write")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="such as: make train")
    arguments = parser.parse_args()

    def shown() -> Iterator[Event]:
        for second, text in run(arguments.command):
            sys.stderr.write(text)
            yield second, text

    arguments.cast.write_text(cast(" ".join(arguments.command), shown()), encoding="utf-8")


if __name__ == "__main__":
    main()
