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

_START = """
import os, subprocess, tempfile
from pathlib import Path
from runner.node.failures import StageFailedError
from runner.node.script.command import protect_folders, start_protected

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
        env={"PYTHONPATH": code, "PATH": os.defpath},
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
    assert second == "refused"
