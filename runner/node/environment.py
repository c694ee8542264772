"""The script's Python environment: built once per content, kept on the node."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import sysconfig
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.node.environment_report import satisfies
from runner.node.environment_store import EnvironmentStore, is_whole, remove_tree
from runner.node.events import Report
from runner.node.failures import StageFailedError
from runner.node.node_lock import node_lock
from runner.node.requirements_text import STEP, Requirements
from runner.node.uv_process import ask_uv, find_uv, run_uv, uv_environment

# Raise it when an environment of the same requirements must be built differently.
LAYOUT_VERSION = 1
# Ubuntu 22.04, Azure's GPU image, has Python 3.10, which NumPy, JAX and Keras no longer support: a
# recipe that names no Python gets the one of Ubuntu 24.04 there.
OLDEST_PYTHON = (3, 11)
NEWER_PYTHON = "3.12"


class EnvironmentBuilder:
    """Makes `shared/runner/envs/<hash>`; `check` may raise to stop a build."""

    def __init__(self, shared_dir: Path, report: Report, check: Callable[[], None]) -> None:
        self._shared_dir = shared_dir
        self._envs = shared_dir / "runner" / "envs"
        self._cache = shared_dir / "runner" / "cache"
        self._store = EnvironmentStore(self._cache)
        self._report = report
        self._check = check

    def ensure(
        self,
        code_dir: Path,
        requirements_file: str | None,
        python: str | None,
        code_sha256: str,
        *,
        constraints: Sequence[str] = (),
    ) -> Path:
        """The folder of a complete environment, built if need be. Raises StageFailedError.

        `constraints` are `name==version`: packages get those versions, whatever is newest now.
        """
        requirements = (
            Requirements(code_dir / requirements_file, code_dir) if requirements_file else None
        )
        uv = find_uv(self._shared_dir)
        if python is None and sys.version_info[:2] < OLDEST_PYTHON:
            python = NEWER_PYTHON
        interpreter = Path(sys.executable) if python is None else self._find_python(uv, python)
        target = self._envs / _environment_hash(requirements, interpreter, python, code_sha256)
        if constraints and requirements and not _has(target, constraints):
            name = f"{target.name}:{json.dumps(sorted(constraints))}"
            target = self._envs / hashlib.sha256(name.encode()).hexdigest()[:32]
        if is_whole(target):
            self._report("environment is cached")
            return target
        # The lock lies in the cache: nodes that share one build an environment once.
        with node_lock(self._cache / "locks" / target.name, self._while_waiting):
            if is_whole(target):
                self._report("environment is cached")
                return target
            remove_tree(target)
            if self._store.take(target.name, target):
                self._report("environment is cached")
            else:
                self._build(uv, interpreter, requirements, code_dir, target, constraints)
                self._store.keep(target.name, target)
        return target

    def _while_waiting(self) -> None:
        self._report("another task is building the same environment")
        self._check()

    def _build(
        self,
        uv: Path,
        interpreter: Path,
        requirements: Requirements | None,
        code_dir: Path,
        target: Path,
        constraints: Sequence[str],
    ) -> None:
        # Under the lock nobody else builds this one: what lies there is from a killed task, and
        # its uv may still be writing into it.
        self._envs.mkdir(parents=True, exist_ok=True)
        for left in self._envs.glob(f"{target.name}.building*"):
            shutil.rmtree(left, ignore_errors=True)
        building = target.with_name(f"{target.name}.building-{uuid.uuid4().hex}")
        environment = uv_environment(self._cache / "uv")
        try:
            # Relocatable: scripts must not name the folder that is about to be renamed.
            venv = [uv, "venv", "--relocatable", "--no-project", "--python", interpreter, building]
            run_uv(venv, environment, cwd=code_dir, report=self._report, check=self._check)
            if requirements is not None:
                self._report("installing", 0, requirements.count, "packages")
                install = [uv, "pip", "install", "--python", building / "bin" / "python"]
                if constraints:
                    pinned = building / "constraints.txt"
                    pinned.write_text("\n".join(constraints), encoding="utf-8")
                    install += ["-c", pinned]
                install += ["--compile-bytecode", "-r", requirements.path]
                run_uv(install, environment, cwd=code_dir, report=self._report, check=self._check)
            building.rename(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _find_python(self, uv: Path, request: str) -> Path:
        """The interpreter uv takes for a request such as `3.12` or `>=3.11`; may download it."""
        environment = uv_environment(self._cache / "uv")
        # An interpreter uv has to download belongs to the node, not to one task's home.
        environment.setdefault("UV_PYTHON_INSTALL_DIR", str(self._cache / "python"))
        find = [uv, "python", "find", "--no-project", request]
        found = ask_uv([*find, "--system"], environment)
        if found.returncode != 0:
            self._report(f"no Python {request} on this node: downloading it")
            install = [uv, "python", "install", "--no-bin", request]
            run_uv(install, environment, cwd=Path.cwd(), report=self._report, check=self._check)
            found = ask_uv(find, environment)
        if found.returncode != 0:
            why = found.stderr.strip() or "uv found none"
            raise StageFailedError(STEP, "EnvironmentFailed", f"no Python {request}: {why}")
        return Path(found.stdout.strip())


def _has(environment: Path, constraints: Sequence[str]) -> bool:
    """Whether it is there, with these versions: then nothing needs to be built for them."""
    pairs = (text.partition("==") for text in constraints)
    wanted = {name: version for name, _, version in pairs}
    return is_whole(environment) and satisfies(environment, wanted)


def _environment_hash(
    requirements: Requirements | None, interpreter: Path, python: str | None, code_sha256: str
) -> str:
    key = {
        "layout": LAYOUT_VERSION,
        "requirements": requirements.texts if requirements else None,
        # What is installed out of the code changes with the code.
        "code": code_sha256 if requirements and requirements.local else None,
        "python": str(interpreter.resolve()),
        "version": sys.version if python is None else python,
        "platform": [sysconfig.get_platform(), *platform.libc_ver()],
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
