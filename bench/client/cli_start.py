"""Start of the command: `runner --help` and `runner ps` against the imports that they need."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.storage.blob import BlobServiceClient

from bench.report import Ratio
from bench.services import RUNNER, local_services, storage_connection_string
from runner.cli.main import VERBS
from runner.protocol.results import INDEX_FOLDER

ROUNDS = 7
RUNS = 200
SCRIPT = Path(__file__).with_name("nothing.py")


def measure() -> Iterator[Ratio]:
    """Return ratios of medians. Rounds are interleaved, so that noise affects both sides."""
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder, "bare.py")
        bare.write_text(_bare_app(VERBS))
        bare_app = [sys.executable, str(bare), "--help"]
        ours, peer = _race([RUNNER, "--help"], bare_app, dict(os.environ))
    yield Ratio(
        "runner --help", "s", ours, "bare Typer app, as many commands", peer,
        "<= 1.3x", ours <= 1.3 * peer,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, local_services() as env:
        bare = Path(folder, "bare.py")
        bare.write_text(_COMMAND_WITH_AN_OPTION)
        _finished_runs(env, RUNS)
        ours, peer = _race([RUNNER, "ps"], [sys.executable, str(bare)], env)
    yield Ratio(
        f"runner ps, {RUNS} runs", "s", ours, "a Typer command that imports its SDKs", peer,
        "<= 1.5x", ours <= 1.5 * peer,
    )  # fmt: skip


# Typer imports pydantic when a command has an option.
_COMMAND_WITH_AN_OPTION = """import typer, azure.batch, azure.storage.blob
app = typer.Typer()
@app.command()
def ps(limit: int = 20) -> None:
    print(limit)
app()
"""


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


def _finished_runs(env: dict[str, str], count: int) -> None:
    """Create one real run, and copies of its records and entry with other IDs, a day older."""
    train = [RUNNER, "train", str(SCRIPT), "--no-download"]
    subprocess.run(train, env=env, check=True, capture_output=True)
    service = BlobServiceClient.from_connection_string(storage_connection_string(env))
    runs = service.get_container_client("runs")
    records = [
        name for name in runs.list_blob_names() if name.endswith(("run.json", "result.json"))
    ]
    run_id = records[0].split("/")[0]
    entry = f"{INDEX_FOLDER}{run_id}"
    metadata = runs.get_blob_client(entry).get_blob_properties().metadata
    texts = {name: runs.download_blob(name).readall().decode() for name in records}
    today = datetime.now(UTC).date()
    yesterday = today - timedelta(days=1)
    texts = {name: text.replace(f"{today}T", f"{yesterday}T") for name, text in texts.items()}
    metadata = {key: text.replace(f"{today}T", f"{yesterday}T") for key, text in metadata.items()}
    for number in range(count - 1):
        copy = f"{run_id[:-4]}{number:04d}"
        for name, text in texts.items():
            runs.upload_blob(name.replace(run_id, copy), text.replace(run_id, copy))
        copied = {key: text.replace(run_id, copy) for key, text in metadata.items()}
        runs.upload_blob(entry.replace(run_id, copy), b"", metadata=copied)


def _bare_app(names: Iterable[str]) -> str:
    commands = "\n".join(
        f"@app.command({name!r})\ndef command_{n}() -> None:\n    'Do what {name} does.'\n"
        for n, name in enumerate(names)
    )
    return f"import typer\napp = typer.Typer()\n{commands}\napp()\n"
