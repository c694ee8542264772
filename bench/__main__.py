"""Run the benchmarks: `python -m bench [NAME ...] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from bench.report import PeerMissingError, Ratio, as_json, as_table

NAMES = (
    "cli_start",
    "submission",
    "add_collection",
    "task_rate",
    "scale",
    "autoscale",
    "log_latency",
    "train_warm",
    "gang_start",
    "checkpoint",
    "infra_program",
    "history",
    "transfers",
    "resubmission",
)


def main() -> int:
    """Measure, print, and exit 1 when a bound is missed."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {unknown[0]}; there are {', '.join(NAMES)}")
    # Each first round compiles what is not compiled yet; nobody pays for that on every run.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ratios: list[Ratio] = []
    for name in args.names or NAMES:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            ratios += importlib.import_module(f"bench.{name}").measure()
        except PeerMissingError as err:
            print(f"  skipped: {err}", file=sys.stderr)
    print(as_json(ratios) if args.json else as_table(ratios))
    return 0 if all(r.met is not False for r in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
