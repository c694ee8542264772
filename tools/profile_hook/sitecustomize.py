"""Record in which files functions execute, in a process that has EXECUTED_FILES.

Python imports this module at start when its folder is on PYTHONPATH, or among its packages; see
tools/executed_files.py. EXECUTED_FILES names the file to write.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from types import CodeType, FrameType

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


def _is_function(code: CodeType) -> bool:
    """Return False for module bodies, class bodies, and lambdas outside of functions."""
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or class body
        return False
    if code.co_name in _COMPREHENSIONS:
        return True
    return code.co_name != "<lambda>" or "<locals>" in code.co_qualname


def _record(target: str) -> None:
    """Append the name of every source file to `target` when a function in it first executes."""
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    seen: set[CodeType] = set()
    files: set[str] = set()

    def on_event(frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        if code.co_filename not in files and _is_function(code):
            files.add(code.co_filename)
            os.write(out, f"{code.co_filename}\n".encode())  # the agent ends without atexit

    threading.setprofile(on_event)
    sys.setprofile(on_event)


if _target := os.environ.pop("EXECUTED_FILES", None):
    os.environ.pop("PYTHONPATH", None)  # the processes that this one starts are not recorded
    _record(_target)
