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
from runner.protocol.errors import RunnerError

MODULES = (
    "client.cli_start",
    "emulator.submission",
    "emulator.add_collection",
    "emulator.task_rate",
    "emulator.scale",
    "emulator.autoscale",
    "simulator",
    "training.log_latency",
    "training.metric_reading",
    "training.train_warm",
    "training.node_group_start",
    "training.data_parallel",
    "training.checkpoint",
    "infra_program",
    "client.history",
    "client.long_history",
    "page.page",
    "client.why",
    "client.transfers",
    "client.resubmission",
    "training.collecting",
    "sweeps.sweep",
    "sweeps.short_trials",
    "page.page_sweep",
)
NAMES = {module.rpartition(".")[2]: module for module in MODULES}


def main() -> int:
    """Run the benchmarks and print the results. Return 1 if one missed its bound or failed."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(NAMES)}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--runs", help="the number of runs of long_history")
    args = parser.parse_args()
    if args.runs:
        os.environ["BENCH_RUNS"] = args.runs
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {unknown[0]}; there are {', '.join(NAMES)}")
    # With this variable, every process of a benchmark would compile all modules again.
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
        except subprocess.CalledProcessError as err:  # the other benchmarks are still measured
            said = err.stderr or err.stdout or b""
            text = said.decode(errors="replace") if isinstance(said, bytes) else said
            print(f"{name} failed: {err}\n{text}", file=sys.stderr, flush=True)
            missed += 1
        except RunnerError as err:  # such as data that cannot be downloaded
            print(f"{name} failed: {err}", file=sys.stderr, flush=True)
            missed += 1
        print(f"[{name}: {time.monotonic() - start:.0f} s]", file=sys.stderr, flush=True)
    return 1 if missed else 0


def _measured(name: str) -> Iterable[Ratio]:
    """Yield the ratios of one benchmark, each as soon as it is measured."""
    return importlib.import_module(f"bench.{NAMES[name]}").measure()


if __name__ == "__main__":
    sys.exit(main())
