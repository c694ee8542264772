"""Build the virtual environment of the script once for each set of packages, and describe it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner.node.environment.uv import ask_uv, find_uv, run_uv, uv_environment
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.command import dies_with_parent
from runner.node.script.protection import protect_node
from runner.node.script.streams import Report
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.host import remove_tree
from runner.protocol.paths import RunPaths

STEP = "environment"
INCLUDES = ("-r", "--requirement", "-c", "--constraint")
EDITABLE = ("-e", "--editable")
FIND_LINKS = ("-f", "--find-links")
# The value of a short option may follow without a space: `-rbase.txt`.
OPTION = re.compile(r"(--[\w-]+|-\w)\s*=?\s*(.*)")
COMMENT = re.compile(r"(^|\s)#.*")
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")


# Inline metadata of a script: packaging.python.org/specifications/inline-script-metadata.
METADATA = re.compile(r"(?m)^# /// script\s*$(?s:.*?)^# ///\s*$")
LOCAL_SOURCE = re.compile(r"\b(path|workspace)\s*=|file:")


class Requirements:
    """A file that lists packages for uv, with all files that it includes.

    It is a requirements file, a `pyproject.toml`, or a script with inline metadata. `local` is True
    if it installs from the code itself (`.`, `./lib`, `file:`), so that the environment depends on
    the code too.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self.local = False
        self._root = root.resolve()
        self._read(path)

    def report_to(self, report: Report) -> None:
        """Report the start of the installation, with the number of packages if known."""
        if self.path.suffix in (".toml", ".py"):
            report(f"installing the packages of {self.path.name}")
        else:
            report("installing", 0, self.count, "packages")

    @property
    def count(self) -> int:
        """The number of lines that request a package, which may install further ones."""
        lines = (line.strip() for text in self.texts.values() for line in text.splitlines())
        return sum(1 for line in lines if line and line[0] not in "#-")

    def _read(self, path: Path) -> None:
        inside = path.resolve()
        if not inside.is_relative_to(self._root):
            raise _bad_requirements(f"{path.name} is outside the code's folder")
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
        if path.suffix in (".toml", ".py"):
            if path.suffix == ".py" and (found := METADATA.search(self.texts[name])):
                self.texts[name] = found[0]  # other edits of the script need no new environment
            self.local = bool(LOCAL_SOURCE.search(self.texts[name]))
            return
        # A backslash at the end of a line joins it with the next one.
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
                f"{line!r}: an editable install refers to the folder of one task, but other "
                "tasks of the node share the environment; remove -e"
            )
        if name in INCLUDES and not URL.match(value):
            self._read(folder / value)
        elif name in FIND_LINKS and not URL.match(value):
            self.local = True


def read_requirements(
    code_dir: Path, file: str | None, packages: Sequence[str]
) -> tuple[Requirements | None, list[str]]:
    """Return the requirements, and the packages that they do not list at the start of a line.

    A package with a version, as in `torch>=2.4`, is always returned.
    """
    requirements = Requirements(code_dir / file, code_dir) if file else None
    text = "\n".join(requirements.texts.values()) if requirements else ""

    def is_listed(package: str) -> bool:
        # With a version, it is installed too, so that the file cannot hide what was asked for.
        line = rf"(?im)^[#\s\"']*{re.escape(package)}(?![\w.-])"
        return re.fullmatch(r"[\w.-]+", package) is not None and bool(re.search(line, text))

    return requirements, [name for name in packages if not is_listed(name)]


def _is_local(requirement: str) -> bool:
    """Return True if the requirement may be a path. A wrong True only causes a rebuild."""
    what = requirement.rpartition(" @ ")[2].partition(";")[0].strip()
    if what.startswith("file:"):
        return True
    if URL.match(what) or "://" in what:
        return False
    return "/" in what or what.startswith(".") or what.endswith(ARCHIVES)


def _bad_requirements(message: str) -> StageFailedError:
    return StageFailedError(STEP, "EnvironmentFailed", message)


_WITH_BYTE_CODE = ".with-byte-code"  # this file marks a stored environment with bytecode
MAX_ENVIRONMENTS = 8  # if there are more, the least recently used ones are deleted


class EnvironmentStore:
    """The environments in `cache_dir`, if that is a link to a disk that outlives the node.

    Otherwise, all methods do nothing.
    """

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "envs" if cache_dir.is_symlink() else None

    def copy_to(self, name: str, target: Path) -> bool:
        """Copy the environment `name` to `target`. Return False if it is not available."""
        if self._folder is None:
            return False
        stored = self._folder / name
        if not is_usable(stored):
            remove_environment(stored)
            return False
        with suppress(OSError):
            os.utime(stored)  # the time of the last use
        return _link_tree(stored, target)

    def add(self, name: str, source: Path) -> None:
        """Store a complete environment if possible."""
        if self._folder is None or (self._folder / name).is_dir():
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            _link_tree(source, self._folder / name)
            self._remove_old()

    def add_byte_code(self, name: str, source: Path) -> None:
        """Store the bytecode that the first script has written, if possible. Do it only once."""
        if self._folder is None:
            return
        stored = self._folder / name
        if not is_usable(stored) or (stored / _WITH_BYTE_CODE).exists():
            return
        with suppress(OSError):
            for folder in source.rglob("__pycache__"):
                target = stored / folder.relative_to(source)
                if not target.exists():
                    _link_tree(folder, target)
            (stored / _WITH_BYTE_CODE).touch()

    def _remove_old(self) -> None:
        assert self._folder is not None  # noqa: S101 - for the type checker
        stored = [path for path in self._folder.iterdir() if path.is_dir() and "." not in path.name]
        stored.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in stored[MAX_ENVIRONMENTS:]:
            # A task that is copying this environment at the moment fails, and builds its own.
            remove_environment(path)


def is_usable(environment: Path) -> bool:
    """Return True if the environment and the interpreter that it links to exist."""
    return (environment / "bin" / "python").exists()


def remove_environment(path: Path) -> None:
    """Delete a folder. It is renamed first, so that no task uses it while it is deleted."""
    with suppress(OSError):
        renamed = path.with_name(f"{path.name}.old-{secrets.token_hex(16)}")
        path.rename(renamed)
        remove_tree(renamed)


@contextmanager
def new_environment(target: Path) -> Generator[Path]:
    """Yield a new folder for building an environment, which the block renames to `target`.

    The caller holds the lock of `target`, so existing build folders are of killed tasks. Their uv
    may still be writing, so the new folder has a new name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{target.name}.building*"):
        remove_tree(left)
    building = target.with_name(f"{target.name}.building-{secrets.token_hex(16)}")
    try:
        yield building
    finally:
        remove_tree(building)


LAYER_FOLDER = "venv"  # in the task's working directory
_SHARED_PACKAGES = "_runner_shared.pth"
_OTHER_SHELLS = (".bat", ".fish", ".nu", ".ps1", ".xsh")  # of scripts that activate it
_MAX_SCRIPT_BYTES = 64 * 1024  # larger programs are no scripts
# `python -m pip` runs it until the real pip has replaced it.
_PIP = """\
# Unpack the pip that comes with this Python, then run it.
import fcntl, glob, os, shutil, sys, sysconfig, tempfile, zipfile

packages = sysconfig.get_path("purelib")  # of the layer; this file may be elsewhere


def unpack():
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR")]
    try:
        import ensurepip

        folders.append(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"))
    except ImportError:
        pass
    wheels = (glob.glob(os.path.join(each, "pip-*.whl")) for each in folders if each)
    found = [wheel for each in wheels for wheel in each]
    if not found:
        sys.exit("error: this Python comes without pip: add pip to the requirements")
    beside = tempfile.mkdtemp(dir=packages)
    try:
        with zipfile.ZipFile(found[0]) as archive:
            archive.extractall(beside)
        for name in sorted(os.listdir(beside), reverse=True):  # `pip` last: then it is complete
            if not os.path.exists(os.path.join(packages, name)):
                os.rename(os.path.join(beside, name), os.path.join(packages, name))
    finally:
        shutil.rmtree(beside, ignore_errors=True)


with open(os.path.join(packages, ".pip.lock"), "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not os.path.isdir(os.path.join(packages, "pip")):
        unpack()
os.execv(sys.executable, [sys.executable, "-m", "pip"] + sys.argv[1:])
"""
_PIP_COMMAND = '#!/bin/sh\nexec "${0%/*}/python" -m pip "$@"\n'


def private_layer(shared: Path, layer: Path) -> Path:
    """Create the environment of one task, which uses the packages of `shared`, and return it.

    Whatever the task installs or writes in its environment is in this layer, and is gone with the
    task. Its packages come before the shared ones.
    """
    remove_tree(layer)
    layer.unlink(missing_ok=True)  # a link
    layer.mkdir(parents=True)
    folder = next(shared.glob("lib/python*/site-packages"), None)
    for entry in os.scandir(shared):
        path = f"{layer}/{entry.name}"
        if entry.name == "bin":
            _copy_programs(entry.path, path, shared, layer)
        elif entry.name == "pyvenv.cfg":
            shutil.copyfile(entry.path, path)
        elif entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)  # noqa: PTH115, PTH211 - as it is
        elif entry.is_dir():
            _link_files(entry.path, path, skipped=str(folder))
    if folder is not None:
        packages = layer / folder.relative_to(shared)
        packages.mkdir(parents=True, exist_ok=True)
        # A line for Python, and one for `shared_environment`.
        lines = f"import site; site.addsitedir({str(folder)!r})\n#{shared}\n"
        (packages / _SHARED_PACKAGES).write_text(lines, encoding="utf-8")
    return layer


def shared_environment(environment: Path) -> Path:
    """Return the environment with the packages of a layer; another environment as it is."""
    for file in environment.glob(f"lib/python*/site-packages/{_SHARED_PACKAGES}"):
        return Path(file.read_text(encoding="utf-8").splitlines()[1][1:])
    return environment


def _copy_programs(source: str, target: str, shared: Path, layer: Path) -> None:
    """Copy scripts, so that they run the interpreter of the layer, and link other programs."""
    os.mkdir(target)  # noqa: PTH102 - Path objects would be slow
    old, new = os.fsencode(shared), os.fsencode(layer)
    for entry in os.scandir(source):
        path = f"{target}/{entry.name}"
        if entry.name.endswith(_OTHER_SHELLS):
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)  # noqa: PTH115, PTH211 - as it is
            continue
        content = b"\0"
        if entry.is_file() and entry.stat().st_size <= _MAX_SCRIPT_BYTES:
            with open(entry.path, "rb", buffering=0) as file:  # noqa: PTH123
                content = file.readall()
        if b"\0" in content:
            os.symlink(entry.path, path)  # noqa: PTH211
            continue
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, entry.stat().st_mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.replace(old, new))


def _link_files(source: str, target: str, skipped: str) -> None:
    """Create the folders of `source` anew, with links to its files, except the folder `skipped`."""
    if source == skipped:
        return
    os.mkdir(target)  # noqa: PTH102 - Path objects would be slow
    for entry in os.scandir(source):
        path = f"{target}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            _link_files(entry.path, path, skipped)
        else:
            os.symlink(entry.path, path)  # noqa: PTH211


def add_pip(environment: Path) -> None:
    """Add a pip that installs itself in the layer that uses it, unless the packages include pip."""
    for packages in environment.glob("lib/python*/site-packages"):
        if (packages / "pip").exists():
            return
        (packages / "pip").mkdir()
        (packages / "pip" / "__init__.py").touch()
        (packages / "pip" / "__main__.py").write_text(_PIP, encoding="utf-8")
    for name in ("pip", "pip3"):
        program = environment / "bin" / name
        program.write_text(_PIP_COMMAND, encoding="utf-8")
        program.chmod(0o755)


COMPILED = ".compiled"  # ends the name of the file that marks a compiled folder
_COMPILE = """\
import compileall, fcntl, os, sys
os.nice(19)
os.setsid()
try:
    with open("/proc/self/autogroup", "w") as file:
        file.write("19")
except OSError:
    pass
for folder, mark in zip(sys.argv[1::2], sys.argv[2::2]):
    lock = os.open(mark + ".lock", os.O_WRONLY | os.O_CREAT, 0o200)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        continue
    compileall.compile_dir(folder, quiet=2, workers=1)
    open(mark, "w").close()
"""


def compile_later(layer: Path, hooks: Sequence[Path]) -> subprocess.Popen[bytes] | None:
    """Start to compile the packages below a layer, and the hooks, which scripts may not write to.

    The process has the lowest priority. Linux shares the processor between sessions first, so its
    session has it too (sched(7), "The autogroup feature"). The caller ends it, and the next run
    continues. Scripts import few modules, so that none are compiled before they start: all of Keras
    and JAX take 13 s of CPU. Return None if there is nothing to do.
    """
    environment = shared_environment(layer)
    packages = next(environment.glob("lib/python*/site-packages"), None)
    if environment == layer or packages is None:
        return None
    places = [(packages, environment / COMPILED)]
    places += [(each, each / f".{environment.name}{COMPILED}") for each in hooks]
    words = [str(path) for place in places if not place[1].exists() for path in place]
    if not words:
        return None
    python = environment / "bin" / "python"
    return subprocess.Popen(
        [str(python), "-I", "-S", "-c", _COMPILE, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=dies_with_parent(),  # noqa: PLW1509 - one system call, no locks, no imports
    )


def _link_tree(source: Path, target: Path) -> bool:
    """Copy `source` to the new folder `target` with hard links. `target` appears complete.

    Return False if that is not possible.
    """
    part = target.with_name(f"{target.name}.part-{secrets.token_hex(16)}")
    try:
        shutil.copytree(source, part, symlinks=True, copy_function=os.link)
        part.rename(target)
    except (OSError, shutil.Error):  # another file system, a full disk, or another task was faster
        shutil.rmtree(part, ignore_errors=True)
        return False
    return True


logger = logging.getLogger(__name__)

_CPU_INFO = Path("/proc/cpuinfo")
_NVIDIA = Path("/proc/driver/nvidia")


def write_environment(
    runs: ContainerClient, paths: RunPaths, attempt: int, environment: Path
) -> None:
    """Write `attempts/<n>/environment.json` if possible."""
    try:
        body = json.dumps(describe_environment(environment), indent=1).encode()
        runs.put(paths.attempt_environment(attempt), body)
    except (OSError, StorageRequestError, ValueError) as err:
        logger.warning("cannot write environment.json: %s", err)


def _find_libc() -> list[str]:
    """Return the name and version of the C library, as `platform.libc_ver`, but faster."""
    with suppress(AttributeError, ValueError, OSError):  # not glibc
        found = (os.confstr("CS_GNU_LIBC_VERSION") or "").split(maxsplit=1)
        if len(found) == 2:
            return found
    import platform  # noqa: PLC0415

    return list(platform.libc_ver())


def describe_environment(environment: Path) -> dict[str, Any]:
    """Return the content of environment.json: the packages and the machine."""
    return {
        "python": _python_version(environment),
        "platform": sysconfig.get_platform(),
        "libc": " ".join(_find_libc()),
        "cpu": _read_field(_CPU_INFO, "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": [_read_field(file, "Model") for file in sorted(_NVIDIA.glob("gpus/*/information"))],
        "driver": _first_line(_NVIDIA / "version"),
        "packages": installed_packages(environment),
    }


def installed_packages(environment: Path) -> dict[str, str]:
    """Return the version of each package that was installed from an index, by name.

    Packages from a folder or a URL are left out, because their version does not identify them.
    """
    found: dict[str, str] = {}
    environment = shared_environment(environment)
    for folder in environment.glob("lib/python*/site-packages/*.dist-info"):
        if (folder / "direct_url.json").exists():
            continue
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        if version:
            found[name.replace("_", "-").lower()] = version
    return dict(sorted(found.items()))


def satisfies(environment: Path, constraints: Mapping[str, str]) -> bool:
    """Return True if no installed package violates a constraint (version by name)."""
    installed = installed_packages(environment)
    return all(constraints.get(name, version) == version for name, version in installed.items())


def _python_version(environment: Path) -> str:
    for line in _lines(environment / "pyvenv.cfg"):
        name, _, value = line.partition("=")
        if name.strip() in ("version_info", "version"):
            return value.strip()
    return sys.version.split()[0] if environment == Path(sys.prefix) else ""


def _read_field(file: Path, name: str) -> str:
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


# Increase it if an environment with the same requirements must be built differently from now on.
LAYOUT_VERSION = 2
# Azure's GPU image is Ubuntu 22.04 with Python 3.10, which NumPy, JAX and Keras no longer support.
# A recipe without `python` gets the version of Ubuntu 24.04 there.
MIN_PYTHON = (3, 11)
NEWER_PYTHON = "3.12"


def environment_hash(
    requirements: Requirements | None, packages: Sequence[str], code_sha256: str, **more: object
) -> str:
    """Return the name of an environment: a hash of all that decides its content."""
    key = {
        "requirements": requirements.texts if requirements else None,
        **({"packages": sorted(packages)} if packages else {}),
        # Packages that are installed from the code change with it.
        "code": code_sha256 if requirements and requirements.local else None,
        **more,
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


_MOST_LINES = 20_000


class Builder:
    """Builds environments as `shared/runner/envs/<hash>`; `check` may raise to stop a build.

    Attributes:
        output: The commands that it ran and their output, the last 20,000 lines; empty if the
            environment was complete.
    """

    def __init__(self, shared_dir: Path, report: Report, check: Callable[[], None]) -> None:
        self._shared_dir = shared_dir
        self._envs = shared_dir / "runner" / "envs"
        self._report = report
        self._check = check
        self.output: deque[str] = deque(maxlen=_MOST_LINES)

    def _while_waiting(self) -> None:
        self._report("another task is building the same environment")
        self._check()

    def _run_uv(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        cwd: Path,
        protect: Callable[[], None] | None = None,
    ) -> None:
        run_uv(
            command,
            environment,
            cwd=cwd,
            report=self._report,
            check=self._check,
            record=self.output.append,
            protect=protect,
        )


class EnvironmentBuilder(Builder):
    """Builds environments with the Python of the node, or another one that uv installs."""

    def __init__(self, shared_dir: Path, report: Report, check: Callable[[], None]) -> None:
        super().__init__(shared_dir, report, check)
        self._cache = shared_dir / "runner" / "cache"
        self._store = EnvironmentStore(self._cache)

    def ensure(
        self,
        code_dir: Path,
        requirements_file: str | None,
        python: str | None,
        code_sha256: str,
        *,
        constraints: Sequence[str] = (),
        packages: Sequence[str] = (),
    ) -> Path:
        """Return the folder of a complete environment; build it if necessary.

        Args:
            code_dir: the folder of the script's code.
            requirements_file: a path in that folder, or None for an empty environment.
            python: a version request for uv such as `3.12`, or None.
            code_sha256: the hash of the code. It matters if requirements install from the code.
            constraints: the versions that packages must have, each as `name==version`.
            packages: packages to install unless the requirements list them.

        Raises:
            StageFailedError: the environment cannot be built.
        """
        requirements, packages = read_requirements(code_dir, requirements_file, packages)
        if python is None and sys.version_info[:2] < MIN_PYTHON:
            python = NEWER_PYTHON
        interpreter = Path(sys.executable) if python is None else self._find_python(python)
        settings = _uv_settings(code_dir) if requirements or packages else {}
        target = self._envs / environment_hash(
            requirements,
            packages,
            code_sha256,
            layout=LAYOUT_VERSION,
            python=str(interpreter.resolve()),
            version=sys.version if python is None else python,
            platform=[sysconfig.get_platform(), *_find_libc()],
            **({"settings": settings} if settings else {}),
        )
        if constraints and (requirements or packages) and not _has_versions(target, constraints):
            name = f"{target.name}:{json.dumps(sorted(constraints))}"
            target = self._envs / hashlib.sha256(name.encode()).hexdigest()[:32]
        if is_usable(target):
            self._report("environment is cached")
            self._store.add_byte_code(target.name, target)
            return target
        # The lock is in the cache, so that nodes that share a cache build an environment once.
        with node_lock(self._cache / "locks" / target.name, self._while_waiting):
            if is_usable(target):
                self._report("environment is cached")
                return target
            remove_environment(target)
            if self._store.copy_to(target.name, target):
                self._report("environment is cached")
            else:
                self._report_install(requirements, packages)
                arguments: list[str | Path] = [*packages]
                arguments += [] if requirements is None else ["-r", requirements.path]
                self._build(interpreter, arguments, code_dir, target, constraints)
                self._store.add(target.name, target)
        return target

    def _build(
        self,
        interpreter: Path,
        arguments: Sequence[str | Path],
        code_dir: Path,
        target: Path,
        constraints: Sequence[str],
    ) -> None:
        """Build the environment in a new folder, and rename it to `target`.

        `arguments` of `uv pip install` say what to install.
        """
        uv = find_uv(self._shared_dir)
        environment = uv_environment(self._cache / "uv")
        with new_environment(target) as building:
            # Relocatable, because the folder is renamed afterwards.
            venv = [uv, "venv", "--relocatable", "--no-project", "--python", interpreter, building]
            self._run_uv(venv, environment, code_dir)
            if arguments:
                install = [uv, "pip", "install", "--python", building / "bin" / "python"]
                if constraints:
                    pinned = building / "constraints.txt"
                    pinned.write_text("\n".join(constraints), encoding="utf-8")
                    install += ["-c", pinned]
                # Without --compile-bytecode, because scripts import only a part of the modules: all
                # of Keras and JAX take 13 s of CPU, the imported ones 3 s.
                install += arguments
                self._install(install, environment, code_dir, building)
            (building / ".lock").unlink(missing_ok=True)  # of uv; a script could hold it
            add_pip(building)
            building.rename(target)

    def _install(
        self,
        install: Sequence[str | Path],
        environment: Mapping[str, str],
        code_dir: Path,
        building: Path,
    ) -> None:
        """Run `uv pip install`, so that no package can change what other environments get.

        Packages that are built from source run their own code for that. Where the node can be
        protected, uv first tries without them; else they write to a copy of the cache.
        """
        own, cache = building.with_name(f"{building.name}.cache"), self._cache / "uv"
        for folder in (own, cache):
            folder.mkdir(parents=True, exist_ok=True)
        copies = {Path(os.path.realpath(cache)): own}
        protect = protect_node(self._shared_dir, [building, own], copies)
        try:
            if protect is not None:
                try:
                    self._run_uv([*install[:3], "--no-build", *install[3:]], environment, code_dir)
                    return
                except StageFailedError as err:
                    if err.code != "EnvironmentFailed":
                        raise
                environment = {**environment, "UV_LINK_MODE": "copy"}
            self._run_uv(install, environment, code_dir, protect)
        finally:
            remove_tree(own)

    def _report_install(self, requirements: Requirements | None, packages: Sequence[str]) -> None:
        if requirements is not None:
            requirements.report_to(self._report)
        elif packages:
            self._report(f"installing {', '.join(packages)}")

    def _find_python(self, request: str) -> Path:
        """Return uv's interpreter for a request such as `3.12` or `>=3.11`; may download it.

        Raises:
            StageFailedError: no such interpreter is on the node, and uv cannot download it.
        """
        uv = find_uv(self._shared_dir)
        environment = uv_environment(self._cache / "uv")
        # Store a downloaded interpreter for all tasks of the node, not in the home of this one.
        environment.setdefault("UV_PYTHON_INSTALL_DIR", str(self._cache / "python"))
        find = [uv, "python", "find", "--no-project", request]
        found = ask_uv([*find, "--system"], environment)
        if found.returncode != 0:
            self._report(f"no Python {request} on this node: downloading it")
            install = [uv, "python", "install", "--no-bin", request]
            try:
                self._run_uv(install, environment, Path.cwd())
            except StageFailedError as err:
                if err.code == "DiskFull":
                    raise
                raise _python_missing(request, err.message) from err
            found = ask_uv(find, environment)
        if found.returncode != 0:
            raise _python_missing(request, found.stderr.strip() or "uv found no such version")
        return Path(found.stdout.strip())


def _python_missing(request: str, why: str) -> StageFailedError:
    message = f"Python {request} is not on the node and cannot be downloaded: {why}"
    return StageFailedError(STEP, "PythonMissing", message)


def _has_versions(environment: Path, constraints: Sequence[str]) -> bool:
    """Return True if the environment exists and satisfies the constraints."""
    pairs = (text.partition("==") for text in constraints)
    wanted = {name: version for name, _, version in pairs}
    return is_usable(environment) and satisfies(environment, wanted)


def _uv_settings(code_dir: Path) -> dict[str, str]:
    """Return the settings of uv that the code brings along, such as another package index."""
    found: dict[str, str] = {}
    for name in ("uv.toml", "pyproject.toml"):
        with suppress(OSError, UnicodeDecodeError):
            text = (code_dir / name).read_text(encoding="utf-8")
            if name == "uv.toml" or "tool.uv" in text.replace('"', "").replace(" ", ""):
                found[name] = text
    return found
