"""Exit codes in words: the number, and the signal where there was one."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """`exit code 3`, or `exit code 137, SIGKILL`; negative codes are signals too."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    return f"exit code {code}, {name}" if name else f"exit code {code}"
