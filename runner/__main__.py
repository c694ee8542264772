"""Entry of `runner` and `python -m runner`; Ctrl-C during imports prints no traceback."""

from __future__ import annotations

import sys

_INTERRUPTED = 130  # 128 + SIGINT


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from runner.cli.main import main as command  # noqa: PLC0415  importing takes a while

        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201  nothing of ours is loaded yet
        return _INTERRUPTED


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # `python -m` would import the modules of the current folder
    raise SystemExit(main())
