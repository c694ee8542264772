"""The Python environment in a container: that of the image, plus the requirements if any."""

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
from runner.node.environment.virtual_env import Requirements, is_usable, remove_tree
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.streams import Report

LAYOUT_VERSION = 2
_PATH_FILE = "image.pth"  # lists further folders of packages, which Python searches last
_PROBE_S = 30.0


class ImageEnvironment:
    """Builds `shared/runner/envs/<hash>` on top of an image; `check` may raise to stop a build."""

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
        """Return a folder with `bin/python`; the arguments are those of `EnvironmentBuilder`.

        Raises:
            StageFailedError: the environment cannot be built.
        """
        if requirements_file is None:
            return self._link_interpreter(code_dir.parent / "python")
        requirements = Requirements(code_dir / requirements_file, code_dir)
        target = self._root / "envs" / self._hash(requirements, code_sha256, constraints)
        pins = code_dir.parent / "constraints.txt"
        pins.write_text("\n".join(constraints), encoding="utf-8")
        # Not in `cache`, which may be a link to a folder that is not mounted in the container.
        with node_lock(self._root / "locks" / target.name, self._while_waiting):
            if is_usable(target):
                self._report("environment is cached")
                return target
            remove_tree(target)
            self._build(requirements, pins, code_dir, target)
        return target

    def _link_interpreter(self, folder: Path) -> Path:
        """Return a folder with the image's interpreter as `bin/python`."""
        if sys.prefix != sys.base_prefix:
            # A virtual environment finds its packages only in its own folder.
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
            _add_image_packages(building)
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
        # The new environment can use the image's pip. Another copy takes seconds, and Debian's
        # Python needs the package python3-venv for it.
        options = ["--system-site-packages", *(["--without-pip"] if find_spec("pip") else [])]
        return (
            [sys.executable, "-m", "venv", *options, building],
            [python, "-m", "pip", "install", *quiet, *what],
        )

    def _uv(self) -> Path | None:
        """Return uv of the image or node if it runs here: it may need another C library."""
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


def _add_image_packages(building: Path) -> None:
    """Let the new environment use the packages of the image's virtual environment, if it is one.

    Both have the same base interpreter, and `--system-site-packages` covers only its packages.
    """
    if sys.prefix == sys.base_prefix:
        return
    below = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    for packages in building.glob("lib/python*/site-packages"):
        (packages / _PATH_FILE).write_text("\n".join(below), encoding="utf-8")


def _move_scripts(building: Path, target: Path) -> None:
    """Replace the interpreter in the first lines of scripts by that of the final folder."""
    old, new = (str(folder / "bin" / "python").encode() for folder in (building, target))
    for script in (building / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if text.startswith(b"#!") and old in text:
            script.write_bytes(text.replace(old, new))
