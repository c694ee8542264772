"""Text of scripts and commands without what only terminals understand."""

from __future__ import annotations

import re

# Sequences of ECMA-48: CSI, OSC up to BEL or ST, and two-byte ones.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Return text of a script without the escape sequences of terminals and other controls.

    Of a line that was overwritten with carriage returns, as progress bars do, the end is kept.
    """
    text = _ESCAPES.sub("", text)
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub("\ufffd", text)
