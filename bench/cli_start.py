"""Start of the command: `runner --help` and `runner ps` against what they cannot do without."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from bench.report import Ratio
from bench.services import local_services
from runner.cli.main import VERBS

ROUNDS = 9


def measure() -> list[Ratio]:
    """Medians of interleaved runs, so that a noisy moment hits both sides."""
    runner = str(Path(sys.executable).with_name("runner"))
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder, "bare.py")
        bare.write_text(_bare_app(VERBS))
        bare_app = [sys.executable, str(bare), "--help"]
        ours, peer = _race([runner, "--help"], bare_app, dict(os.environ))
    help_ratio = Ratio(
        "runner --help", "s", ours, "bare Typer app, as many commands", peer,
        "<= 1.3x", ours <= 1.3 * peer,
    )  # fmt: skip
    imports = [sys.executable, "-c", "import typer, azure.batch, azure.storage.blob"]
    with local_services() as env:
        ours, peer = _race([runner, "ps"], imports, env)
    ps_ratio = Ratio(
        "runner ps", "s", ours, "importing Typer and its SDKs", peer, "<= 1.5x", ours <= 1.5 * peer
    )
    return [help_ratio, ps_ratio]


def _race(ours: list[str], peer: list[str], env: dict[str, str]) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for round_number in range(ROUNDS + 1):
        for command, into in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            subprocess.run(
                command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if round_number:  # the first round only warms the page cache
                into.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def _bare_app(names: Iterable[str]) -> str:
    commands = "\n".join(
        f"@app.command({name!r})\ndef command_{n}() -> None:\n    'Do what {name} does.'\n"
        for n, name in enumerate(names)
    )
    return f"import typer\napp = typer.Typer()\n{commands}\napp()\n"
