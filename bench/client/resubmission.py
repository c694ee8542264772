"""A second submission of code: bytes sent, against sending it again; time, against git's list."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from azure.storage.blob import BlobServiceClient

from bench.report import Ratio
from bench.services import local_services, storage_connection_string
from runner.azure.auth.credentials import connect
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import load_settings
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.pipeline import Services, dry_run_services, plan_submission
from runner.flows.submit.submit_run import submit_run

CODE_BYTES = 4_000_000
FILES, CHANGED = 10_000, 10


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
              again[0], "<= 0.02x", sent[1] <= 0.02 * again[0]),
        _plan_of_many_files(),
    ]  # fmt: skip


def _plan_of_many_files() -> Ratio:
    """Return the time of a plan for a checkout of which few files have changed since the last."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        code, home = Path(folder, "project"), Path(folder, "home")
        home.mkdir()
        stack.enter_context(patch.dict(os.environ, {"RUNNER_HOME": str(home)}))  # of the agent
        for number in range(FILES):
            path = code / f"package{number // 500}" / f"module{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"VALUE = {number}\n" * 100)
        (code / "train.py").write_text("print('trained')\n")
        _git(code, "init", "--quiet")
        _git(code, "add", "--all")
        _git(
            code, *("-c", "user.name=A", "-c", "user.email=a@example.org"), "commit", "--message=x"
        )
        settings = load_settings({}, cwd=code, env={"RUNNER_HOME": str(home)})
        recipe = load_recipe(str(code), cwd=code)
        ours: list[float] = []
        peer: list[float] = []
        for turn in range(4):
            time.sleep(2.5)  # files that changed just now are read again
            changed = [code / "package0" / f"module{number}.py" for number in range(CHANGED)]
            for path in changed:
                path.write_text(f"VALUE = {turn}\n" * 100)
            start = time.perf_counter()
            plan_submission(
                check_run(recipe, RunOptions()), dry_run_services(settings), ignore_progress
            )
            ours.append(time.perf_counter() - start)
            start = time.perf_counter()
            _git(code, "ls-files", "-co", "--exclude-standard", "-z")
            _git(code, "ls-files", "--modified", "-z")
            for path in changed:
                path.read_bytes()
            peer.append(time.perf_counter() - start)
    best, bare = min(ours[1:]), min(peer)  # the first plan compresses all files
    return Ratio(f"plan of {FILES:,} files, {CHANGED} changed", "s", best,
                 "git ls-files, and reading them", bare, "<= 1.2x", best <= 1.2 * bare)  # fmt: skip


def _git(folder: Path, *args: str) -> None:
    subprocess.run(["git", "-C", str(folder), *args], check=True, capture_output=True)


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
