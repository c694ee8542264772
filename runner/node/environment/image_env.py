"""The Python environment in a container: the packages of the image, plus the requirements."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.node.environment.building import (
    add_pip,
    add_uv,
    new_environment,
    remove_environment,
)
from runner.node.environment.uv import STEP, package_commands, uv_environment
from runner.node.environment.virtual_env import Builder, Installation, is_usable
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.streams import Report
from runner.protocol.codec import parse_json
from runner.protocol.host import remove_tree
from runner.protocol.task import IMAGE_PYTHON_VARIABLE

if TYPE_CHECKING:
    from runner.node.environment.install_variables import InstallVariables

LAYOUT_VERSION = 4
# Runs in the Python of any image, which may be too old for this module's syntax.
_DESCRIBE = """\
import json, sys, sysconfig
try:
    from importlib.util import find_spec
    pip = find_spec("pip") is not None
except ImportError:
    pip = False
print(json.dumps({
    "version": sys.version, "number": list(sys.version_info[:2]), "pip": pip,
    "prefix": sys.prefix, "is_venv": sys.prefix != getattr(sys, "base_prefix", sys.prefix),
    "packages": [sysconfig.get_path(name) for name in ("purelib", "platlib")],
}))
"""
_MIN_PYTHON_FOR_UV = (3, 8)
_PATH_FILE = "image.pth"  # lists further folders of packages, which Python searches last
_PROBE_S = 30.0


@dataclass(frozen=True)
class ImagePython:
    """The Python interpreter of an image. The agent may run in a different one."""

    path: str
    version: str
    number: tuple[int, int]
    prefix: Path
    is_venv: bool
    has_pip: bool
    packages: tuple[str, ...]

    @classmethod
    def describe(cls, path: str) -> ImagePython:
        """Query the interpreter at `path`. Raise StageFailedError."""
        try:
            done = subprocess.run(
                [path, "-c", _DESCRIBE],
                env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")},
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                check=True,
            )
            raw = parse_json(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as err:
            message = f"cannot query {path} of the image: {err}"
            raise StageFailedError(STEP, "EnvironmentFailed", message) from err
        major, minor = raw["number"]
        prefix, packages = Path(raw["prefix"]), tuple(dict.fromkeys(raw["packages"]))
        return cls(
            path, raw["version"], (major, minor), prefix, raw["is_venv"], raw["pip"], packages
        )


class ImageEnvironment(Builder):
    """Builds environments on top of an image."""

    def __init__(
        self,
        shared_dir: Path,
        image: str,
        report: Report,
        check: Callable[[], None],
        variables: InstallVariables | None = None,
        commits: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(shared_dir, report, check, variables, commits)
        self._image = image
        path = os.environ.get(IMAGE_PYTHON_VARIABLE, sys.executable)
        self._python = ImagePython.describe(path) if path else None

    def ensure(
        self,
        code_dir: Path,
        requirements_file: str | None,
        code_sha256: str,
        constraints: Sequence[str] = (),
        packages: Sequence[str] = (),
    ) -> Path:
        """Return a folder with `bin/python`; the arguments are those of `EnvironmentBuilder`.

        Raises:
            StageFailedError: the environment cannot be built.
        """
        if requirements_file is None and not packages:
            return self._link_interpreter(code_dir.parent / "python")
        if self._python is None:
            listed = requirements_file or ", ".join(packages)
            message = f"the image has no Python to install {listed} for"
            raise StageFailedError(STEP, "EnvironmentFailed", message)
        plan = self._plan(code_dir, requirements_file, packages)
        target = self._envs / plan.hash(
            code_sha256,
            layout=LAYOUT_VERSION,
            image=self._image,
            constraints=sorted(constraints),
            python=[self._python.path, self._python.version],
        )
        pins = code_dir.parent / "constraints.txt"
        pins.write_text("\n".join(constraints), encoding="utf-8")
        # Not in `cache`, which may be a link to a folder that is not mounted in the container.
        with node_lock(self._root / "locks" / target.name, self._while_waiting):
            if is_usable(target):
                self._report("environment is cached")
                return target
            remove_environment(target)
            plan.report_to(self._report)
            self._build(self._python, plan, pins, code_dir, target)
        return target

    def _link_interpreter(self, folder: Path) -> Path:
        """Return a folder with the image's interpreter, if it has one, as `bin/python`."""
        python = self._python
        self._report("the image's Python" if python else "the image has no Python")
        if python is not None and python.is_venv:
            # A virtual environment finds its packages only in its own folder.
            return python.prefix
        remove_tree(folder)
        (folder / "bin").mkdir(parents=True)
        if python is not None:
            (folder / "bin" / "python").symlink_to(python.path)
        return folder

    def _build(
        self,
        image_python: ImagePython,
        plan: Installation,
        pins: Path,
        code_dir: Path,
        target: Path,
    ) -> None:
        """Build the environment in a new folder, and rename it to `target`.

        `pins` is a file of constraints.
        """
        environment = {**uv_environment(self._uv_cache), **plan.variables}
        uv = self._find_uv()
        with new_environment(target) as building:
            if uv is None:
                _refuse_tables(plan)
            self._installer.run(_create_command(image_python, uv, building), environment, code_dir)
            _add_image_packages(image_python, building)
            arguments = plan.install_arguments(building, for_pip=uv is None)
            install, uninstall = package_commands(uv, building)
            self._installer.run([*install, *arguments, "-c", pins], environment, code_dir)
            self._complete(building, code_dir, uninstall, environment)
            _move_scripts(building, target)
            add_pip(building)
            if uv is not None:
                add_uv(building)
            building.rename(target)

    def _find_uv(self) -> Path | None:
        """Return uv of the image or node, or None if the image's pip has to install packages.

        It has to for an old Python, or if uv does not run with the libraries of the image.
        """
        if self._python is None or self._python.number < _MIN_PYTHON_FOR_UV:
            return None
        try:
            uv = super()._find_uv()
            if uv is None:
                return None
            command = [str(uv), "--version"]
            done = subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False)
        except (StageFailedError, OSError, subprocess.TimeoutExpired):
            return None
        return uv if done.returncode == 0 else None


def _refuse_tables(plan: Installation) -> None:
    """Raise StageFailedError for a list of packages that pip cannot read."""
    if plan.requirements is not None and not plan.requirements.is_list:
        message = (
            f"{plan.requirements.path.name} requires uv on the node, and Python 3.8 or newer in "
            "the image: write a requirements.txt"
        )
        raise StageFailedError(STEP, "EnvironmentFailed", message)


def _create_command(image_python: ImagePython, uv: Path | None, building: Path) -> list[str | Path]:
    """Return the command that creates the environment."""
    if uv is not None:
        options = ["--relocatable", "--no-project", "--system-site-packages"]
        return [uv, "venv", *options, "--python", image_python.path, building]
    # The new environment can use the image's pip. Installing another copy takes seconds, and
    # needs the package python3-venv on Debian.
    options = ["--system-site-packages", *(["--without-pip"] if image_python.has_pip else [])]
    return [image_python.path, "-m", "venv", *options, building]


def _add_image_packages(image_python: ImagePython, building: Path) -> None:
    """Let the new environment use the packages of the image's virtual environment, if it has one.

    `--system-site-packages` covers only the packages of the base interpreter, which both share.
    """
    if not image_python.is_venv:
        return
    for packages in building.glob("lib/python*/site-packages"):
        (packages / _PATH_FILE).write_text("\n".join(image_python.packages), encoding="utf-8")


def _move_scripts(building: Path, target: Path) -> None:
    """Replace the interpreter's path in the first lines of scripts by the final path."""
    old, new = (str(folder / "bin" / "python").encode() for folder in (building, target))
    for script in (building / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if text.startswith(b"#!") and old in text:
            script.write_bytes(text.replace(old, new))
