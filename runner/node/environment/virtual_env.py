"""The virtual environment of the script: build it once per content, cache it, and report what is
in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
import sys
import sysconfig
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.node.environment.uv import ask_uv, find_uv, run_uv, uv_environment
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.streams import Report
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.paths import RunPaths

STEP = "environment"
INCLUDES = ("-r", "--requirement", "-c", "--constraint")
EDITABLE = ("-e", "--editable")
FIND_LINKS = ("-f", "--find-links")
# The value of a short option may follow at once: `-rbase.txt`.
OPTION = re.compile(r"(--[\w-]+|-\w)\s*=?\s*(.*)")
COMMENT = re.compile(r"(^|\s)#.*")
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")


class Requirements:
    """The files that count: the one named, and those it includes.

    `local` is true when it installs something out of the code itself (`.`, `./lib`, `file:`): the
    environment then depends on the code too.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self.local = False
        self._root = root.resolve()
        self._read(path)

    @property
    def count(self) -> int:
        """How many lines ask for a package: a lower bound of the packages that get installed."""
        lines = (line.strip() for text in self.texts.values() for line in text.splitlines())
        return sum(1 for line in lines if line and line[0] not in "#-")

    def _read(self, path: Path) -> None:
        inside = path.resolve()
        if not inside.is_relative_to(self._root):
            raise _bad_requirements(f"{path.name} lies outside the code's folder")
        name = str(inside.relative_to(self._root))
        if name in self.texts:
            return
        try:
            self.texts[name] = inside.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as err:
            raise _bad_requirements(
                f"{name} is not UTF-8 text: save it as UTF-8 (PowerShell's > writes UTF-16)"
            ) from err
        except OSError as err:
            raise _bad_requirements(
                f"cannot read the requirements file {name}: {err.strerror}"
            ) from err
        # A backslash at its end joins a line with the next one.
        for line in re.sub(r"\\\n", "", self.texts[name]).splitlines():
            self._read_line(COMMENT.sub("", line).strip(), inside.parent)

    def _read_line(self, line: str, folder: Path) -> None:
        option = OPTION.match(line)
        if option is None:
            self.local = self.local or _is_local(line)
            return
        name, value = option[1], option[2].strip("\"' ")
        if name in EDITABLE:
            raise _bad_requirements(
                f"{line!r}: an editable install points into one task's folder, which other "
                "tasks of the node do not have; write the path without -e"
            )
        if name in INCLUDES and not URL.match(value):
            self._read(folder / value)
        elif name in FIND_LINKS and not URL.match(value):
            self.local = True


def _is_local(requirement: str) -> bool:
    """Whether it is, or may be, a path: then it costs a build too many, not a stale one."""
    what = requirement.rpartition(" @ ")[2].partition(";")[0].strip()
    if what.startswith("file:"):
        return True
    if URL.match(what) or "://" in what:
        return False
    return "/" in what or what.startswith(".") or what.endswith(ARCHIVES)


def _bad_requirements(message: str) -> StageFailedError:
    return StageFailedError(STEP, "EnvironmentFailed", message)


KEPT_ENVIRONMENTS = 8  # environments; the least recently used ones go


class EnvironmentStore:
    """`cache_dir` is `shared/runner/cache`; without a link there it dies with the node: no use."""

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "envs" if cache_dir.is_symlink() else None

    def take(self, name: str, target: Path) -> bool:
        """Make `target` a copy of the environment `name`; False when there is none to be had."""
        if self._folder is None:
            return False
        kept = self._folder / name
        if not is_whole(kept):
            remove_tree(kept)  # `keep` then takes the new one
            return False
        with suppress(OSError):
            os.utime(kept)  # used just now
        return _link_tree(kept, target)

    def keep(self, name: str, source: Path) -> None:
        """Keep a finished environment; that it cannot be kept is no failure."""
        if self._folder is None or (self._folder / name).is_dir():
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            _link_tree(source, self._folder / name)
            self._remove_old()

    def _remove_old(self) -> None:
        assert self._folder is not None  # noqa: S101 - for the type checker
        kept = [path for path in self._folder.iterdir() if path.is_dir() and "." not in path.name]
        for path in sorted(kept, key=lambda p: p.stat().st_mtime, reverse=True)[KEPT_ENVIRONMENTS:]:
            # Whoever is copying it right now fails, and builds instead.
            remove_tree(path)


def is_whole(environment: Path) -> bool:
    """Whether it is there, and its interpreter too: that one may have been removed or upgraded."""
    return (environment / "bin" / "python").exists()


def remove_tree(path: Path) -> None:
    """Take a folder out of use at once, then remove it."""
    with suppress(OSError):
        gone = path.with_name(f"{path.name}.old-{uuid.uuid4().hex}")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _link_tree(source: Path, target: Path) -> bool:
    """Hard-link every file of `source` into the new folder `target`, which appears whole."""
    part = target.with_name(f"{target.name}.part-{uuid.uuid4().hex}")
    try:
        shutil.copytree(source, part, symlinks=True, copy_function=os.link)
        part.rename(target)
    except (OSError, shutil.Error):  # another file system, a full disk, or somebody was quicker
        shutil.rmtree(part, ignore_errors=True)
        return False
    return True


logger = logging.getLogger(__name__)

_CPU_INFO = Path("/proc/cpuinfo")
_NVIDIA = Path("/proc/driver/nvidia")


def write_environment(
    runs: ContainerClient, blobs: RunPaths, attempt: int, environment: Path
) -> None:
    """Write `attempts/<n>/environment.json`. That it cannot be written is no failure."""
    try:
        body = json.dumps(describe_environment(environment), indent=1).encode()
        runs.put(blobs.attempt_environment(attempt), body)
    except (OSError, StorageRequestError, ValueError) as err:
        logger.warning("what the run runs with could not be recorded: %s", err)


def describe_environment(environment: Path) -> dict[str, Any]:
    """The environment in that folder, and this machine."""
    return {
        "python": _python(environment),
        "platform": sysconfig.get_platform(),
        "libc": " ".join(platform.libc_ver()),
        "cpu": _field(_CPU_INFO, "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": [_field(file, "Model") for file in sorted(_NVIDIA.glob("gpus/*/information"))],
        "driver": _first_line(_NVIDIA / "version"),
        "packages": installed_packages(environment),
    }


def installed_packages(environment: Path) -> dict[str, str]:
    """Versions by name, of what is installed from an index; None of its files is imported.

    What came from a folder or an address has no version that says what it is: it is left out.
    """
    found: dict[str, str] = {}
    for folder in environment.glob("lib/python*/site-packages/*.dist-info"):
        if (folder / "direct_url.json").exists():
            continue
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        if version:
            found[name.replace("_", "-").lower()] = version
    return dict(sorted(found.items()))


def satisfies(environment: Path, constraints: Mapping[str, str]) -> bool:
    """Whether every package that is there has the version that is wanted."""
    there = installed_packages(environment)
    return all(constraints.get(name, version) == version for name, version in there.items())


def _python(environment: Path) -> str:
    for line in _lines(environment / "pyvenv.cfg"):
        name, _, value = line.partition("=")
        if name.strip() in ("version_info", "version"):
            return value.strip()
    return platform.python_version() if environment == Path(sys.prefix) else ""


def _field(file: Path, name: str) -> str:
    for line in _lines(file):
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _first_line(file: Path) -> str:
    return next(iter(_lines(file)), "")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


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
