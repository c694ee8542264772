"""Control sequences in names, messages and logs of a record do not reach the terminal."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from runner.cli.ui import terminal
from runner.cli.ui.terminal import shown_log, styled, visible

pytestmark = pytest.mark.attack

HIDING = [
    *("\x1b[8m", "\x1b[0;8m", "\x1b[1;08m", "\x1b[5m", "\x1b[31;8m", "\x1b[38;5;1;8m"),
    *("\x1b[2J", "\x1b[1A", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b]52;c;eA==\x07"),
    *("\x9b8m", "\x9d0;t\x9c", "\x1bc", "\u202e", "\u2066", "\u200f", "\u061c", "\x08", "\r"),
]


@pytest.fixture(autouse=True)
def _on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize("sequence", HIDING, ids=ascii)
def test_log_line_cannot_hide_or_reorder_text(sequence: str) -> None:
    shown = shown_log(f"a{sequence}b", sys.stdout).removesuffix("\x1b[0m")
    assert shown == "ab"


@pytest.mark.parametrize(
    "sequence", [*HIDING, "\x1b[41m", "\x1b[38;5;0m", "\x1b[30;40m"], ids=ascii
)
def test_message_shows_sequences_of_a_record_as_text(sequence: str) -> None:
    assert sequence[0] not in visible(f"a{sequence}b")


@pytest.mark.parametrize("colour", ["\x1b[31m", "\x1b[1;32m", "\x1b[38;5;8m", "\x1b[48;2;8;8;8m"])
def test_colours_of_a_script_and_our_own_are_kept(colour: str) -> None:
    assert colour in shown_log(f"{colour}x", sys.stdout)
    for style in ("bold", "dim", "red", "green", "yellow", "cyan", "bold red", "bold yellow"):
        text: Any = styled("x", style, sys.stdout)
        assert visible(text) == text
