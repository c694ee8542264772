"""The Python environment of an `environment.yml` with packages of conda, built by micromamba."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runner.node.environment.building import add_pip, new_environment, remove_environment
from runner.node.environment.uv import STEP, find_uv, package_commands, uv_environment
from runner.node.environment.virtual_env import EDITABLES, Builder, is_usable
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.protection import protect_node
from runner.protocol.host import remove_tree

LAYOUT_VERSION = 2
_LOCAL = ("-e ", "./", "../", "-r ", "file:")  # in the pip part: it installs from the code


class CondaEnvironment(Builder):
    """Builds environments with micromamba, which is a program of the node or of the image.

    Packages of conda contain their final path, so they are installed in a folder of their own,
    `<hash>.conda`. The environment is a virtual environment that uses them.
    """

    def ensure(
        self, code_dir: Path, file: str, code_sha256: str, packages: Sequence[str] = ()
    ) -> Path:
        """Return the folder of a complete environment; build it if necessary.

        Args:
            code_dir: the folder of the script's code.
            file: the path of `environment.yml` in that folder.
            code_sha256: the hash of the code. It matters if the file installs from the code.
            packages: packages to install besides, such as those that execute a notebook.

        Raises:
            StageFailedError: the environment cannot be built.
        """
        try:
            text = (code_dir / file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise _failed(f"cannot read {file}: {err}") from err
        key = {
            "conda": text,
            "packages": sorted(packages),
            "code": code_sha256 if any(mark in text for mark in _LOCAL) else None,
            "layout": LAYOUT_VERSION,
            "machine": platform.machine(),
        }
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        target = self._envs / name
        # Not in `cache`, which may be a link to a folder that is not mounted in the container.
        with node_lock(self._root / "locks" / name, self._while_waiting):
            if is_usable(target):
                self._report("environment is cached")
                return target
            remove_environment(target)
            self._report(f"installing the packages of {file}")
            self._build(code_dir, file, target, packages)
        return target

    def _find_uv(self) -> Path | None:
        """Return uv, or None if the pip of the environment has to install packages."""
        with suppress(StageFailedError):
            return super()._find_uv()
        return None

    def _build(self, code_dir: Path, file: str, target: Path, packages: Sequence[str]) -> None:
        # The runner links that of this machine on local nodes, as uv.
        linked = self._root / "bin" / "micromamba"
        micromamba = str(linked) if os.access(linked, os.X_OK) else shutil.which("micromamba")
        if micromamba is None:
            raise _failed(
                f"{file} has packages of conda, and no program micromamba is on the PATH of this "
                "node: install it in the start_script of the pool or in the image, or list the "
                "packages in a requirements.txt"
            )
        prefix = target.with_name(f"{target.name}.conda")
        own = target.with_name(f"{target.name}.mamba")  # downloads, and the state of micromamba
        self._envs.mkdir(parents=True, exist_ok=True)
        try:
            for folder in (prefix, own):  # of a killed task
                remove_tree(folder)
                folder.mkdir()
            environment = {**uv_environment(own / "uv"), "MAMBA_ROOT_PREFIX": str(own)}
            create = [micromamba, "create", "--yes", "--prefix", prefix, "--file", code_dir / file]
            # Packages run code of their own when they are installed.
            protect = protect_node(self._shared_dir, [prefix, own], {})
            self._installer.run(create, environment, code_dir, protect)
            python = prefix / "bin" / "python"
            if not os.access(python, os.X_OK):
                raise _failed(f"{file} installs no Python: add python to its dependencies")
            _, uninstall = package_commands(None, prefix)  # the pip that has installed them
            self._complete(prefix, code_dir, uninstall, environment)
            with new_environment(target) as building:
                venv = [python, "-m", "venv", "--system-site-packages", "--without-pip", building]
                self._installer.run(venv, environment, code_dir)
                if (prefix / EDITABLES).exists():
                    (prefix / EDITABLES).rename(building / EDITABLES)
                _link_programs(prefix / "bin", building / "bin")
                if packages:
                    uv = [find_uv(self._shared_dir), "pip", "install"]
                    into = ["--python", building / "bin" / "python"]
                    self._installer.run([*uv, *into, *packages], environment, code_dir)
                add_pip(building)
                building.rename(target)
        except BaseException:
            remove_tree(prefix)
            raise
        finally:
            remove_tree(own)


def _link_programs(source: Path, target: Path) -> None:
    """Add the programs of the packages to those of the virtual environment."""
    for program in source.iterdir():
        if not (target / program.name).exists() and not program.name.startswith("python"):
            (target / program.name).symlink_to(program)


def _failed(message: str) -> StageFailedError:
    return StageFailedError(STEP, "EnvironmentFailed", message)
