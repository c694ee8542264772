"""Steps of the VM image in a real root of Ubuntu, where one can be made."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_steps_run_on_a_real_ubuntu_and_change_nothing_the_second_time(tmp_path: Path) -> None:
    root, steps = tmp_path / "root", ("archive", "uv", "health")
    try:
        first = _run(root, *steps)
        if first.returncode == 75:
            pytest.skip(first.stderr.strip().splitlines()[-1])
        assert first.returncode == 0, first.stderr
        assert re.findall(r"(?m)^ran: (\w+)$", first.stdout) == list(steps)
        version = re.search(r"(?m)^UV_VERSION=(.+)$", _versions())
        assert version is not None
        uv = subprocess.run(
            ["chroot", root, "/usr/local/bin/uv", "--version"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert uv.stdout.split()[:2] == ["uv", version[1]]
        assert (root / "opt/runner/bin/node-health").stat().st_mode & 0o111
        assert "python3-venv=" in (root / "opt/runner/packages.txt").read_text()
        again = _run(root, *steps)
        assert again.returncode == 0, again.stderr
        assert "installing" not in again.stdout + again.stderr
        assert "wrote" not in again.stdout.replace("wrote /etc/apt/apt.conf.d/50runner", "")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "tools" / "image_root.sh", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _versions() -> str:
    return (ROOT / "custom_image" / "versions.env").read_text(encoding="utf-8")
