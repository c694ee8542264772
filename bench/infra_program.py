"""The Pulumi program under mocks against importing the classes that it uses, and nothing more."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from bench.report import Ratio

ROUNDS = 7
_FIGURES = """
import json, resource, time
start = time.perf_counter()
{body}
print(json.dumps([time.perf_counter() - start,
                  resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
_OURS = """
from datetime import UTC, datetime
from pathlib import Path
from infra.offline import declared
from infra.stack_config import load_stack_config
from runner.core.prices import load_price_table
from runner.flows.environment import EXAMPLE
prices = load_price_table(None)
config = load_stack_config(Path("Pulumi.dev.yaml"), environment=EXAMPLE)
found = declared(config, datetime.now(UTC), prices)
assert len(found) > 20
"""


def measure() -> list[Ratio]:
    """Medians of interleaved runs; the classes are those that the program really registers."""
    peer = _FIGURES.format(body=_imports())
    ours = _FIGURES.format(body=_OURS)
    figures: tuple[list[list[float]], list[list[float]]] = ([], [])
    for number in range(ROUNDS + 1):
        for script, into in zip((ours, peer), figures, strict=True):
            found = _run(script)
            if number:  # the first round only warms the page cache
                into.append(found)
    (seconds, memory), (peer_seconds, peer_memory) = (
        (statistics.median(r[0] for r in side), statistics.median(r[1] for r in side))
        for side in figures
    )
    what = "importing its classes alone"
    return [
        Ratio(
            "Pulumi program under mocks", "s", seconds, what, peer_seconds,
            "<= 1.3x", seconds <= 1.3 * peer_seconds,
        ),
        Ratio(
            "Pulumi program, memory", "MiB", memory, what, peer_memory,
            "<= 1.3x", memory <= 1.3 * peer_memory,
        ),
    ]  # fmt: skip


def _imports() -> str:
    """Statements that import every class of the default stack."""
    script = f"{_OURS}\nimport json\nprint(json.dumps(sorted({{f.type for f in found}})))"
    types: list[str] = json.loads(_python(script))
    lines = ["import pulumi"]
    for token in types:
        _, module, kind = token.split(":")
        lines.append(f"from pulumi_azure_native.{module} import {kind}")
    return "\n".join(lines)


def _run(script: str) -> list[float]:
    return json.loads(_python(script).splitlines()[-1])


def _python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ),
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout
