"""Start modules of ours, and of packages that we need, in Python processes of their own.

`python -m` would search each module in the current folder and in PYTHONPATH first, which may have a
`queue.py` or a `batch_emulator/` of the user. `command_of` returns a command that starts this file,
isolated from both. The file therefore imports the standard library only.
"""

from __future__ import annotations

import os
import runpy
import sys

# The folder with the package `runner`. An isolated Python may not search it, for example if it is
# in PYTHONPATH or among the packages of the user.
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `python -m MODULE ARGUMENTS` isolated from the user's modules.

    The process ignores all variables of Python such as PYTHONPATH, and passes them on to its own
    processes.
    """
    return [sys.executable, "-I", __file__, module, *arguments]


def _main() -> None:
    del sys.argv[0]
    sys.path.append(_PACKAGES)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
