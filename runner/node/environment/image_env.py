"""The script's Python in a container: the image's own, with the requirements on top if any."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from runner.node.environment.uv import find_uv, run_uv, uv_environment
from runner.node.environment.virtual_env import Requirements, is_whole, remove_tree
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.streams import Report

LAYOUT_VERSION = 2
_ON_TOP_OF = "image.pth"  # read at every start: folders that are searched last
_PROBE_S = 30.0


class ImageEnvironment:
    """Makes `shared/runner/envs/<hash>` on top of an image; `check` may raise to stop a build."""

    def __init__(
        self, shared_dir: Path, image: str, report: Report, check: Callable[[], None]
    ) -> None:
        self._shared_dir = shared_dir
        self._root = shared_dir / "runner"
        self._image = image
        self._report = report
        self._check = check

    def ensure(
        self,
        code_dir: Path,
        requirements_file: str | None,
        code_sha256: str,
        constraints: Sequence[str] = (),
    ) -> Path:
        """A folder with `bin/python`. Raises StageFailedError."""
        if requirements_file is None:
            return self._plain(code_dir.parent / "python")
        requirements = Requirements(code_dir / requirements_file, code_dir)
        target = self._root / "envs" / self._hash(requirements, code_sha256, constraints)
        pins = code_dir.parent / "constraints.txt"
        pins.write_text("\n".join(constraints), encoding="utf-8")
        # Not in `cache`: that may be a link out of the node's folder, which a container lacks.
        with node_lock(self._root / "locks" / target.name, self._while_waiting):
            if is_whole(target):
                self._report("environment is cached")
                return target
            remove_tree(target)
            self._build(requirements, pins, code_dir, target)
        return target

    def _plain(self, folder: Path) -> Path:
        """The image's interpreter under the name that commands use."""
        if sys.prefix != sys.base_prefix:
            # A virtual environment: only in its own folder it is one, with its packages.
            self._report("the image's Python")
            return Path(sys.prefix)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)
        self._report("the image's Python")
        return folder

    def _while_waiting(self) -> None:
        self._report("another task is building the same environment")
        self._check()

    def _build(self, requirements: Requirements, pins: Path, code_dir: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f"{target.name}.building*"):
            shutil.rmtree(left, ignore_errors=True)
        building = target.with_name(f"{target.name}.building-{uuid.uuid4().hex}")
        environment = uv_environment(self._root / "uv-of-containers")
        self._report("installing", 0, requirements.count, "packages")
        try:
            make, install = self._commands(requirements, pins, building)
            run_uv(make, environment, cwd=code_dir, report=self._report, check=self._check)
            _put_on_top(building)
            run_uv(install, environment, cwd=code_dir, report=self._report, check=self._check)
            _move_scripts(building, target)
            building.rename(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _commands(
        self, requirements: Requirements, pins: Path, building: Path
    ) -> tuple[list[str | Path], list[str | Path]]:
        python = building / "bin" / "python"
        what: list[str | Path] = ["-r", requirements.path, "-c", pins]
        if uv := self._uv():
            options = ["--relocatable", "--no-project", "--system-site-packages"]
            return (
                [uv, "venv", *options, "--python", sys.executable, building],
                [uv, "pip", "install", "--python", python, *what],
            )
        quiet = ["--disable-pip-version-check", "--no-input", "--root-user-action=ignore"]
        # The image's pip is seen from the new environment; to unpack another takes seconds, and
        # Debian's Python cannot without the package python3-venv.
        options = ["--system-site-packages", *(["--without-pip"] if find_spec("pip") else [])]
        return (
            [sys.executable, "-m", "venv", *options, building],
            [python, "-m", "pip", "install", *quiet, *what],
        )

    def _uv(self) -> Path | None:
        """uv of the image or of the node, if it runs here: it may be for another C library."""
        try:
            uv = find_uv(self._shared_dir)
            command = [str(uv), "--version"]
            done = subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False)
        except (StageFailedError, OSError, subprocess.TimeoutExpired):
            return None
        return uv if done.returncode == 0 else None

    def _hash(
        self, requirements: Requirements, code_sha256: str, constraints: Sequence[str]
    ) -> str:
        key = {
            "layout": LAYOUT_VERSION,
            "image": self._image,
            "requirements": requirements.texts,
            "code": code_sha256 if requirements.local else None,
            "constraints": sorted(constraints),
            "python": [sys.executable, sys.version],
        }
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


def _put_on_top(building: Path) -> None:
    """Where the image's Python is a virtual environment, the new one sees its packages too.

    Both are made from the same interpreter: `--system-site-packages` means that one's alone.
    """
    if sys.prefix == sys.base_prefix:
        return
    below = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    for packages in building.glob("lib/python*/site-packages"):
        (packages / _ON_TOP_OF).write_text("\n".join(below), encoding="utf-8")


def _move_scripts(building: Path, target: Path) -> None:
    """Scripts that pip wrote begin with the interpreter in the folder they were built in."""
    was, now = (str(folder / "bin" / "python").encode() for folder in (building, target))
    for script in (building / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if text.startswith(b"#!") and was in text:
            script.write_bytes(text.replace(was, now))
