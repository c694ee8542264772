"""Programs in other languages, with the official SDKs that package registries have.

Each is what a first user writes: a pool, a job, 150 tasks in two requests, their states, a file,
an error, and deletion. It runs with the URL of the emulator, and again as `runner local exec
--azure` runs it, with Azure's host names; the SDK for Go signs in with Microsoft Entra ID, so it
runs only with those. Programs are built once, in `.cache/clients`.

The module `azbatch` for Go contains its own tests, which run live and unchanged. They differ from
ours: each waits for its node in steps of 14 s, as the SDK's authors wrote it.

Not tried, because the package registries of the tests lack them: the SDKs for .NET,
`com.azure:azure-compute-batch`, `@azure-rest/batch`, Cromwell, and Nextflow's plugin `nf-azure`.
The VM of the last two reads the options that `tests/e2e/test_azure_names.py` tests with
`azure-identity` and `azure-storage-blob`. The other packages do not contain the SDKs' own tests.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from batch_emulator.gateway.sign_in import REGION
from tests.clients.environments import CACHE
from tests.contract.server import ACCOUNT, KEY, serving

FOLDER = Path(__file__).with_name("languages")
CHECKS = ("pool", "job", "tasks", "counts", "list", "output", "error", "deleted")
_BUILD_LIMIT_S = 600
_LIMIT_S = 240
_NOWHERE = f"http://127.0.0.1:9/{ACCOUNT}"  # the programs use no storage


@dataclass(frozen=True)
class Program:
    """A program, the commands that build it in a copy of its folder, and the one that runs it."""

    language: str
    builds: tuple[tuple[str, ...], ...]
    command: tuple[str, ...]

    def build(self) -> Path:
        """Return the folder with the built program, or skip the test."""
        for tool in {self.command[0], *(command[0] for command in self.builds)}:
            if "/" not in tool and shutil.which(tool) is None:
                pytest.skip(f"{self.language}: there is no {tool}")
        folder, source = CACHE / f"language-{self.language}", FOLDER / self.language
        texts = {path.name: path.read_text("utf-8") for path in sorted(source.iterdir())}
        ready, wanted = folder / ".ready", repr((texts, self.builds))
        CACHE.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # pytest workers share the folder
            if not ready.is_file() or ready.read_text("utf-8") != wanted:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(source, folder)
                for command in self.builds:
                    _build(command, folder)
                ready.write_text(wanted, "utf-8")
        return folder


def _build(command: tuple[str, ...], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        pytest.skip(f"{command[0]} did not build the program: {err}")
    said = f"{done.stdout}\n{done.stderr}"
    if done.returncode and command[0] in ("javac", "go"):
        if any(sign in said for sign in ("dial tcp", "no such host", "reading https://")):
            pytest.skip(f"go cannot download packages: {said[-300:]}")
        raise AssertionError(said)  # our source is wrong
    if done.returncode:
        pytest.skip(f"{command[0]} cannot download packages: {said[-300:]}")


JAVA_BUILD = (("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"),)
JAVA = Program(
    "java",
    (
        *JAVA_BUILD,
        ("javac", "-cp", "lib/*", "-d", "out", "FirstJob.java"),
    ),
    # the SDK is of the time before modules: its runtime reads private fields of java.util
    ("java", "--add-opens", "java.base/java.util=ALL-UNNAMED", "-cp", "lib/*:out", "FirstJob"),
)
JS = Program(
    "js",
    (("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"),),
    ("node", "first_job.js"),
)
GO = Program("go", (("go", "build", "-o", "first-job", "."),), ("./first-job",))


AZBATCH = Program(
    "azbatch",
    (
        (
            "go",
            "test",
            "-c",
            "-o",
            "sdk.test",
            "github.com/Azure/azure-sdk-for-go/sdk/batch/azbatch",
        ),
    ),
    # all tests at once, since they wait for their nodes most of the time
    ("env", "AZURE_RECORD_MODE=live", "./sdk.test", "-test.v", "-test.parallel=16"),
)
SDK_TESTS = (
    *("Applications", "Certificates", "DeallocateNode", "Job", "Job/Schedule"),
    *("ListSupportedImages", "Node", "Pool", "RebootNode", "ReimageNode", "SerDe"),
    *("Task", "Task/Replace"),
)


def _output(program: Program, command: list[str], environment: dict[str, str]) -> str:
    """Return what the program printed. Fail if it does not succeed."""
    done = subprocess.run(
        command,
        cwd=program.build(),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def _lines(program: Program, command: list[str], environment: dict[str, str]) -> list[str]:
    """Return the checks that the program has done."""
    printed = _output(program, command, environment)
    return [line.removeprefix("done: ") for line in printed.splitlines()]


def _gateway(batch_url: str) -> tuple[list[str], dict[str, str]]:
    """Return a command that gives its arguments Azure's host names, and its environment."""
    command = [sys.executable, "-m", "batch_emulator.gateway", "--account", ACCOUNT]
    command += ["--batch", batch_url, "--blob", _NOWHERE, "--file", _NOWHERE, "--"]
    keys = {"AZURE_BATCH_ACCESS_KEY": KEY, "AZURE_STORAGE_KEY": KEY}
    return command, {**keys, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it may download packages
@pytest.mark.parametrize("program", [JAVA, JS], ids=lambda one: one.language)
def test_program_passes_every_check(program: Program, tmp_path: Path) -> None:
    program.build()
    with serving(tmp_path) as running:
        account = {"AZURE_BATCH_ACCOUNT": ACCOUNT, "AZURE_BATCH_ACCESS_KEY": KEY}
        environment = {**account, "AZURE_BATCH_ENDPOINT": running.url, "NO_PROXY": "*"}
        assert tuple(_lines(program, [*program.command], environment)) == CHECKS


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it may download packages
@pytest.mark.parametrize("program", [JAVA, JS, GO], ids=lambda one: one.language)
def test_program_passes_every_check_with_azure_names(program: Program, tmp_path: Path) -> None:
    program.build()
    with serving(tmp_path) as running:
        gateway, environment = _gateway(running.url)
        found = _lines(program, [*gateway, *program.command], environment)
        assert tuple(found) == CHECKS


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it may download packages
def test_own_tests_of_the_go_sdk_pass(tmp_path: Path) -> None:
    AZBATCH.build()
    # A resize lasts half as long as a boot: TestPool stops one after it has begun it.
    with serving(tmp_path, boot_s=10.0) as running:
        gateway, environment = _gateway(running.url)
        environment["AZBATCH_ENDPOINT"] = f"{ACCOUNT}.{REGION}.batch.azure.com"
        printed = _output(AZBATCH, [*gateway, *AZBATCH.command], environment)
    passed = re.findall(r"^ *--- PASS: Test(\S+)", printed, re.MULTILINE)
    assert sorted(passed) == sorted(SDK_TESTS)
