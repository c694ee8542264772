"""Run the benchmarks: `python -m bench [NAME ...] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable

from bench.report import HEAD, PeerMissingError, Ratio, as_json, as_row

NAMES = (
    "cli_start",
    "submission",
    "add_collection",
    "task_rate",
    "scale",
    "autoscale",
    "simulator",
    "log_latency",
    "train_warm",
    "gang_start",
    "data_parallel",
    "checkpoint",
    "infra_program",
    "history",
    "why",
    "transfers",
    "resubmission",
    "collecting",
    "sweep",
)


def main() -> int:
    """Measure, print, and exit 1 when a bound is missed or a benchmark fails."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true", help="one object a line")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {unknown[0]}; there are {', '.join(NAMES)}")
    # Each first round compiles what is not compiled yet; nobody pays for that on every run.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    show = as_json if args.json else as_row
    if not args.json:
        print(HEAD, flush=True)
    missed = 0
    for name in args.names or NAMES:
        start = time.monotonic()
        try:
            for ratio in _measured(name):
                print(show(ratio), flush=True)
                missed += ratio.met is False
        except PeerMissingError as err:
            print(f"{name} is skipped: {err}", file=sys.stderr, flush=True)
        except subprocess.CalledProcessError as err:  # the others are measured all the same
            said = err.stderr or err.stdout or b""
            text = said.decode(errors="replace") if isinstance(said, bytes) else said
            print(f"{name} failed: {err}\n{text}", file=sys.stderr, flush=True)
            missed += 1
        print(f"[{name}: {time.monotonic() - start:.0f} s]", file=sys.stderr, flush=True)
    return 1 if missed else 0


def _measured(name: str) -> Iterable[Ratio]:
    """Yield the ratios of one benchmark, each as soon as it is known."""
    return importlib.import_module(f"bench.{name}").measure()


if __name__ == "__main__":
    sys.exit(main())
