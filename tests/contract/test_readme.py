"""The command blocks of batch_emulator/README.md, as a reader copies them into an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import plain_http
from tests.contract.server import KEY, eventually

ROOT = Path(__file__).parents[2]
_TEXT = (ROOT / "batch_emulator/README.md").read_text("utf-8")
_BEARER = {"authorization": f"Bearer {KEY}"}
_LISTENS = re.compile(r"listening on (\S+) account (\S+)")


def block(heading: str, kind: str = "sh", number: int = 0) -> str:
    """Return the n-th block of a section, on a free port."""
    section = _TEXT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [text for found, text in blocks if found == kind][number]


@pytest.fixture
def reader(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a shell in which `batch-emulator` is installed."""
    programs = tmp_path / "programs"
    programs.mkdir()
    own = programs / "batch-emulator"
    own.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m batch_emulator "$@"\n')
    own.chmod(0o755)
    return {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "BATCH_EMULATOR_KEY": KEY,
    }


@contextmanager
def started(script: str, environment: dict[str, str]) -> Generator[tuple[str, str]]:
    """Run a block that ends with an emulator. Yield its URL, and what it printed until then."""
    process = subprocess.Popen(
        ["bash", "-ec", script.replace("--port 8900", "--port 0")],
        cwd=environment["HOME"], env=environment, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if found := _LISTENS.match(line):
                health = f"{found[1]}/_emulator/health"
                eventually(lambda at=health: plain_http.get(at).status_code == 200)
                yield found[1], printed
                return
        pytest.fail(f"it did not listen: {printed}")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(300)


def ended(script: str, environment: dict[str, str]) -> str:
    """Run commands that end, and return what they print."""
    return subprocess.run(
        ["bash", "-ec", script], cwd=environment["HOME"], env=environment, check=True,
        stdout=subprocess.PIPE, text=True, timeout=120,
    ).stdout  # fmt: skip


def get(url: str) -> Any:
    return plain_http.get(url, headers=_BEARER).json()


def test_server_of_the_readme_has_a_key_of_its_own(reader: dict[str, str]) -> None:
    with started(block("As a server"), reader) as (url, _):
        assert plain_http.get(f"{url}/_emulator/clock", headers=_BEARER).status_code == 403


def test_requests_of_the_readme_work(reader: dict[str, str]) -> None:
    script = "batch-emulator --account local --data-dir ~/.batch --port 8900"
    with started(script, reader) as (url, _):
        push, add = block("The emulator's own API"), block("Faults on purpose", number=1)
        for each in (push, add):
            ended(
                each.replace("curl", "curl --fail -s").replace("http://127.0.0.1:8900", url), reader
            )
        [rule] = get(f"{url}/_emulator/faults")["value"]
        assert (rule["operation"], rule["count"]) == ("Task_AddCollection", 3)


def test_seed_and_exports_of_the_readme_work(reader: dict[str, str]) -> None:
    heading = "Start with pools and jobs, and keep an account in a file"
    with started(block(heading), reader) as (url, printed):
        assert "seeded from seed.json: added 2" in printed
        assert len(get(f"{url}/_emulator/pools/mine/nodes")["value"]) == 1
    first, second, third = block(heading, number=1).splitlines()
    assert "exported 1 pool, 1 job" in ended(first, reader)
    assert "imported 1 pool, 1 job" in ended(second, reader)
    with started(third, reader) as (url, printed):
        assert "imported 1 pool, 1 job" in printed


def test_image_of_the_readme_is_that_of_the_nodes(reader: dict[str, str]) -> None:
    seed = block("Start with pools and jobs, and keep an account in a file").rsplit("\n", 2)[0]
    script = block("Images of nodes").rstrip().removesuffix("\\") + " --seed-file seed.json"
    with started(f"{seed}\n{script}", reader) as (url, _):
        [node] = get(f"{url}/_emulator/pools/mine/nodes")["value"]
        assert node["image"] == str(Path(reader["HOME"], "ml"))


def test_faults_and_trace_of_the_readme_are_loaded(reader: dict[str, str]) -> None:
    home = Path(reader["HOME"])
    home.joinpath("faults.toml").write_text(block("Faults on purpose", "toml"))
    home.joinpath("trace.csv").write_text(block("Evict spot nodes", ""))
    script = block("Faults on purpose").rstrip() + " --eviction-trace trace.csv"
    with started(script, reader) as (url, _):
        found = get(f"{url}/_emulator/faults")
        assert (found["seed"], len(found["value"])) == (7, 5)
