"""Bytes sent by a second submission of the same code, against sending the code again."""

from __future__ import annotations

import contextlib
import http.client
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from azure.storage.blob import BlobServiceClient

from bench.report import Ratio
from bench.services import local_services, storage_connection_string
from runner.azure.auth.credentials import connect
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import load_settings
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.pipeline import Services, plan_submission
from runner.flows.submit.submit_run import submit_run

CODE_BYTES = 4_000_000


def measure() -> list[Ratio]:
    """Return the bytes that the second submission sends, including its records and requests."""
    with local_services() as env, tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "project")
        code.mkdir()
        (code / "train.py").write_text("print('trained')\n")
        (code / "weights.bin").write_bytes(os.urandom(CODE_BYTES))  # incompressible
        service = BlobServiceClient.from_connection_string(storage_connection_string(env))
        with _counted() as again:
            container = service.get_container_client("data")
            for file in code.iterdir():
                container.upload_blob(f"again/{file.name}", file.read_bytes())
        settings = load_settings({}, cwd=code, env={"RUNNER_HOME": env["RUNNER_HOME"]})
        connection = connect(settings)
        services = Services(settings, connection.outputs, connection)
        recipe = load_recipe(str(code), cwd=code)
        sent: list[int] = []
        for _ in range(2):
            checked = check_run(recipe, RunOptions())
            with _counted() as counted:
                plan = plan_submission(checked, services, ignore_progress)
                submit_run(connection, plan, ignore_progress)
            sent.append(counted[0])
    return [
        Ratio("second submission of 4 MB of code", "bytes", sent[1], "sending the code again",
              again[0], "<= 0.02x", sent[1] <= 0.02 * again[0])
    ]  # fmt: skip


@contextlib.contextmanager
def _counted() -> Generator[list[int]]:
    """Count the bytes that this process writes to HTTP connections. Yield a list with the sum."""
    total = [0]
    plain = http.client.HTTPConnection.send

    def send(self: http.client.HTTPConnection, data: Any) -> None:
        content = data.read() if hasattr(data, "read") else bytes(data)
        total[0] += len(content)
        plain(self, content)

    http.client.HTTPConnection.send = send
    try:
        yield total
    finally:
        http.client.HTTPConnection.send = plain
