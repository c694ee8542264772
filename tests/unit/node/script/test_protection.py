"""A script starts without protection only if the kernel permits no namespaces at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import runner
from batch_emulator.executor.node_python import python_for
from batch_emulator.folders import Owner
from runner.node.script import protection
from runner.node.script.protection import NODES_VARIABLE

_START = """
import os, subprocess, tempfile
from pathlib import Path
from runner.node.failures import StageFailedError
from runner.node.script.protection import protect_folders, start_protected

def start(setup):
    subprocess.run(["true"], preexec_fn=setup, check=True)
    return "protected" if setup else "not protected"

with tempfile.TemporaryDirectory() as given:
    folder = Path(given, "above", "folder")
    folder.mkdir(parents=True)
    protect = protect_folders([folder])
    print(start_protected(start, protect))
    folder.parent.rename(Path(given, "other"))  # as another task may do at this moment
    folder.parent.symlink_to("/root")
    try:
        print(start_protected(start, protect))
    except StageFailedError:
        print("refused")
"""


@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="namespaces of Linux")
def test_folder_that_cannot_be_protected_refuses_the_script() -> None:
    assert _second_start({NODES_VARIABLE: "/nodes"}) == "refused"


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces of Linux")
def test_script_starts_on_azure_where_a_mount_is_not_possible() -> None:
    assert _second_start({}) == "not protected"


@pytest.mark.parametrize(
    ("driver", "loaded", "called"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_module_for_gpus_is_loaded_before_no_program_may(
    driver: bool, loaded: bool, called: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, exists in (("_GPU_DRIVER", driver), ("_GPU_MEMORY", loaded)):
        monkeypatch.setattr(protection, name, tmp_path if exists else tmp_path / "missing")
    program = tmp_path / "nvidia-modprobe"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    protection.protect_node(tmp_path / "shared")
    assert (tmp_path / "called").exists() is called


def _second_start(environment: dict[str, str]) -> str:
    """Return how a script starts once another task has exchanged a folder, or skip the test."""
    if not Path("/root").is_dir() or Path("/root").stat().st_mode & 0o007:
        pytest.skip("/root is open to everybody")
    owner, python = None, Path(sys.executable)
    if os.geteuid() == 0:
        owner = Owner(41999, 41999)
        found = python_for(owner)
        if found is None:
            pytest.skip("no Python that another user can run")
        python = found.executable
    code = str(Path(runner.__file__).parents[1])
    done = subprocess.run(
        [str(python), "-B", "-c", _START],
        user=owner.uid if owner else None,
        group=owner.gid if owner else None,
        extra_groups=[] if owner else None,
        cwd="/",
        env={"PYTHONPATH": code, "PATH": os.defpath, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if "PermissionError" in done.stderr or "No module named" in done.stderr:
        pytest.skip("another user cannot read the code of runner")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    if first == "not protected":
        pytest.skip("the kernel permits no namespaces")
    return second
