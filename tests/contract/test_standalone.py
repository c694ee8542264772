"""The emulator as others use it: installed alone, with its pytest fixtures, options and logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from batch_emulator.domain.account import Limits
from batch_emulator.server import Server
from tests import plain_http
from tests.contract.server import Things, client_for, eventually

ROOT = Path(__file__).parents[2]
pytest_plugins = ["pytester"]

README = (ROOT / "batch_emulator/README.md").read_text(encoding="utf-8")
FIVE_LINES = README.split("```python\n", 1)[1].split("```", 1)[0]  # as users copy them


def _bearer(server: Server) -> dict[str, str]:
    return {"authorization": f"Bearer {server.key}"}


@pytest.mark.feature(60)
def test_five_line_example_test_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FIVE_LINES)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_package_installs_without_runner(tmp_path: Path) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    python = tmp_path / "venv/bin/python"
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([uv, "venv", "--quiet", str(tmp_path / "venv")], env=env, check=True)
    wanted = [str(ROOT / "batch_emulator"), "azure-batch>=15.1,<16", "pytest"]
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(python), *wanted], env=env, check=True
    )
    (tmp_path / "test_mine.py").write_text(FIVE_LINES)
    done = subprocess.run(
        [python, "-m", "pytest", "-q"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_fast_clock_boots_slow_nodes_at_once() -> None:
    with Server(limits=Limits(boot_s=600), time_scale=10_000) as server:
        things = Things(client_for(server.url, server.key, server.account))
        week = timedelta(days=7)  # one minute instead of the usual 15 minutes
        pool = things.pool(target_dedicated_nodes=1, resize_timeout=week)
        [node] = things.wait_nodes(pool, 1)
        booted = node.last_boot_time
        assert booted is not None
        assert node.allocation_time is not None
        assert (booted - node.allocation_time).total_seconds() >= 600


def test_clock_can_be_advanced() -> None:
    with Server(limits=Limits(boot_s=600)) as server:
        things = Things(client_for(server.url, server.key, server.account))
        pool = things.pool(target_dedicated_nodes=1)
        assert [node.state for node in things.client.list_nodes(pool)] == ["creating"]
        answer = plain_http.post(
            f"{server.url}/_emulator/clock", json={"push": "PT11M"}, headers=_bearer(server)
        )
        assert answer.status_code == 200
        things.wait_nodes(pool, 1, "idle")


@pytest.mark.parametrize("push", [None, 5, "soon", "-PT5M", ""])
def test_clock_cannot_be_moved_backwards(push: object) -> None:
    with Server() as server:
        answer = plain_http.post(
            f"{server.url}/_emulator/clock", json={"push": push}, headers=_bearer(server)
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "InvalidPropertyValue")


def test_clock_continues_after_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        things = Things(client_for(server.url, server.key, server.account))
        headers = _bearer(server)
        plain_http.post(f"{server.url}/_emulator/clock", json={"push": "P30D"}, headers=headers)
        things.pool()
    with Server(tmp_path) as server:
        [pool] = client_for(server.url, server.key, server.account).list_pools()
        now = plain_http.get(f"{server.url}/_emulator/clock", headers=_bearer(server)).json()["now"]
        assert pool.creation_time is not None
        assert now >= pool.creation_time.isoformat().replace("+00:00", "Z")


def test_reset_deletes_everything() -> None:
    with Server() as server:
        things = Things(client_for(server.url, server.key, server.account))
        pool = things.pool(target_dedicated_nodes=1)
        job = things.job(pool)
        task = things.task(job, "sleep 600")
        things.wait_task(job, task, "running")
        answer = plain_http.post(f"{server.url}/_emulator/reset", headers=_bearer(server))
        assert answer.status_code == 204
        assert list(things.client.list_pools()) == []
        assert list(things.client.list_jobs()) == []


@pytest.mark.slow
def test_log_as_json_has_requests_and_events(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {**os.environ, "BATCH_EMULATOR_KEY": "a2V5"}
    command = [sys.executable, "-m", "batch_emulator", "--account", "a"]
    options = ["--data-dir", str(tmp_path / "d"), "--log-format", "json", "--log-level", "debug"]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, *options], env=env, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        things = Things(client_for(url, "a2V5", "a"))
        job = things.job(things.pool())
        eventually(lambda: '"path": "/jobs"' in log.read_text())
    finally:
        process.terminate()
        process.communicate(timeout=120)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    requests = [line for line in lines if line.get("path") == "/jobs"]
    assert [(one["method"], one["status"]) for one in requests] == [("POST", 201)]
    assert any(line.get("kind") == "job.state" and line["entity"] == job for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "fast"])
def test_invalid_time_scale_is_refused(scale: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batch_emulator", "--account", "a"]
    done = subprocess.run(
        [*command, "--data-dir", str(tmp_path), f"--time-scale={scale}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BATCH_EMULATOR_KEY": "a2V5"},
    )
    assert done.returncode == 2
    assert "--time-scale" in done.stderr
