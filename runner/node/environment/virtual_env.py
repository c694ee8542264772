"""Build the virtual environment of the script once for each set of packages, and describe it.

`Requirements` reads the files that list packages as pip does, `Builder` decides what is installed.
"""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from runner.node.environment.uv import (
    MOST_LINES,
    STEP,
    Installer,
    find_uv,
    is_range,
    meets,
    package_commands,
    uv_environment,
)
from runner.node.failures import StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script.command import dies_with_parent
from runner.node.script.streams import Report
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.codec import parse_json
from runner.protocol.host import remove_tree
from runner.protocol.paths import RunPaths

if TYPE_CHECKING:
    from runner.node.environment.install_variables import InstallVariables
    from runner.protocol.git_requirements import GitAddress

INCLUDES = ("-r", "--requirement", "-c", "--constraint")
EDITABLE = ("-e", "--editable")
FIND_LINKS = ("-f", "--find-links")
# The value of a short option may follow without a space: `-rbase.txt`.
OPTION = re.compile(r"(--[\w-]+|-\w)\s*=?\s*(.*)")
COMMENT = re.compile(r"(^|\s)#.*")
URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
# Changed copies of files, for one installation: they may contain what a file should not.
COPIES = ("requirements.txt", "commits.txt")
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2")
LOCAL_SOURCE = re.compile(r"\b(path|workspace)\s*=|file:")
# Options of a file that uv reads on its command line only.
_ONLY_ARGUMENTS = {"--pre": "--prerelease=allow", "--trusted-host": "--allow-insecure-host"}
_NAMED_EGG = re.compile(r"(?:^|[#&])egg=([A-Za-z0-9._-]+)((?:\[[^\]]*\])?)")
_NAMED_BY_STRING = r"[\"']\s*([A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*git\+[^\"']*)[\"']"


class Requirements:
    """A file that lists packages for uv, with all files that it includes.

    It is a requirements file, a `pyproject.toml`, or a script with inline metadata. `local` is True
    if it installs from the code itself (`.`, `./lib`, `file:`), so that the environment depends on
    the code too.

    Attributes:
        path: The file.
        texts: The text of each file by its path in the code's folder.
        has_extra_index: True if it names a further index, among which pip chooses by version.
        has_index: True if it replaces the index.
        arguments: Arguments of uv for options that it ignores in a file.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self.local = False
        self.has_extra_index = False
        self.has_index = False
        self.arguments: list[str] = []
        self._root = root.resolve()
        self._has_git_editable = False
        self._read(path)

    @property
    def is_list(self) -> bool:
        """True for a requirements file, False for a file with a table of dependencies."""
        return self.path.suffix not in (".toml", ".py")

    def report_to(self, report: Report) -> None:
        """Report the start of the installation, with the number of packages if known."""
        if self.is_list:
            report("installing", 0, self.count, "packages")
        else:
            report(f"installing the packages of {self.path.name}")

    @property
    def count(self) -> int:
        """The number of lines that request a package, which may install further ones."""
        lines = (line.strip() for text in self.texts.values() for line in text.splitlines())
        return sum(1 for line in lines if line and line[0] not in "#-")

    def git_addresses(self) -> list[GitAddress]:
        """Return the addresses of packages in git, each once."""
        text = "\n".join(self.texts.values())
        if "git" not in text:
            return []
        from runner.protocol.git_requirements import find_git_addresses  # noqa: PLC0415  few have

        return find_git_addresses(text)

    def install_arguments(
        self, commits: Mapping[str, str], folder: Path, *, for_pip: bool = False
    ) -> list[str | Path]:
        """Return the arguments of `uv pip install`, or of pip, that install these packages.

        Args:
            commits: the commit of branches and tags in git, by `GitAddress.key`.
            folder: an existing folder for changed copies of the files.
            for_pip: True for pip, which reads all options in the files.
        """
        options = [] if for_pip else self.arguments
        if not self.is_list:
            lines = self._overrides(commits)
            if not lines:
                return ["-r", self.path]
            overrides = folder / COPIES[1]
            overrides.write_text("\n".join(lines), encoding="utf-8")
            return ["-r", self.path, "--override", overrides]
        is_pinned = bool(commits) and any(a.key in commits for a in self.git_addresses())
        if not (is_pinned or self._has_git_editable):
            return [*options, "-r", self.path]
        copy = folder / COPIES[0]
        copy.write_text("\n".join(self._lines(self.path, commits, set())), encoding="utf-8")
        return [*options, "-r", copy]

    def _read(self, path: Path) -> None:
        inside = path.resolve()
        if not inside.is_relative_to(self._root):
            raise bad_requirements(f"{path.name} is outside the code's folder")
        name = str(inside.relative_to(self._root))
        if name in self.texts:
            return
        try:
            self.texts[name] = inside.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as err:
            raise bad_requirements(
                f"{name} is not UTF-8 text: save it as UTF-8 (PowerShell's > writes UTF-16)"
            ) from err
        except OSError as err:
            raise bad_requirements(
                f"cannot read the requirements file {name}: {err.strerror}"
            ) from err
        if path.suffix in (".toml", ".py"):
            if path.suffix == ".py":
                from runner.protocol.git_requirements import INLINE_METADATA  # noqa: PLC0415

                if found := INLINE_METADATA.search(self.texts[name]):
                    self.texts[name] = found[0]  # other edits of it need no new environment
            self.local = bool(LOCAL_SOURCE.search(self.texts[name]))
            return
        for line in _logical_lines(self.texts[name]):
            self._read_line(line, inside.parent)

    def _read_line(self, line: str, folder: Path) -> None:
        option = OPTION.match(line)
        if option is None:
            self.local = self.local or _is_local(line)
            return
        name, value = option[1], option[2].strip("\"' ")
        if name in EDITABLE:
            self._has_git_editable = self._has_git_editable or value.startswith("git+")
            self.local = self.local or not value.startswith("git+")
        elif name in INCLUDES and not URL.match(value):
            self._read(folder / value)
        elif name in FIND_LINKS and not URL.match(value):
            self.local = True
        elif name in _ONLY_ARGUMENTS:
            self.arguments += [_ONLY_ARGUMENTS[name], *([value] if value else [])]
        self.has_extra_index = self.has_extra_index or name == "--extra-index-url"
        self.has_index = self.has_index or name in ("-i", "--index-url", "--pypi-url")

    def _lines(self, path: Path, commits: Mapping[str, str], seen: set[Path]) -> Iterator[str]:
        """Yield the lines of a file with recorded commits, and those of the files it includes."""
        from runner.protocol.git_requirements import pin  # noqa: PLC0415  few need it

        inside = path.resolve()
        if inside in seen:
            return
        seen.add(inside)
        for line in _logical_lines(self.texts[str(inside.relative_to(self._root))]):
            option = OPTION.match(line)
            name, value = (option[1], option[2].strip("\"' ")) if option else ("", "")
            file = inside.parent / value
            if name in INCLUDES[:2] and not URL.match(value):
                yield from self._lines(file, commits, seen)
            elif (name in INCLUDES and not URL.match(value)) or (
                name in FIND_LINKS and not URL.match(value) and file.exists()
            ):
                yield f"{name} {file}"
            elif name in EDITABLE and value.startswith("git+"):
                yield _plain_git(pin(value, commits))
            else:
                yield pin(line, commits)

    def _overrides(self, commits: Mapping[str, str]) -> list[str]:
        """Return requirements with recorded commits that replace those of a table."""
        from runner.protocol.git_requirements import pin  # noqa: PLC0415  few need it

        if not commits:
            return []
        text = "\n".join(self.texts.values())
        found = [pin(each, commits) for each in re.findall(_NAMED_BY_STRING, text)]
        lines = [line for line in found if line not in text]
        for address in self.git_addresses():
            if address.name and (commit := commits.get(address.key)):
                name = re.escape(address.name)
                extras = re.search(rf"[\"']{name}\s*(\[[^\]]*\])", text, re.IGNORECASE)
                where = f"#subdirectory={address.subdirectory}" if address.subdirectory else ""
                which = f"{address.name}{extras[1] if extras else ''}"
                lines.append(f"{which} @ git+{address.text}@{commit}{where}")
        return lines


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines of a requirements file without comments, joined after a backslash."""
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        if stripped := COMMENT.sub("", line).strip():
            yield stripped


def _plain_git(value: str) -> str:
    """Return the requirement of an editable package in git, whose folder no script needs."""
    address, _, fragment = value.partition("#")
    if (named := _NAMED_EGG.search(fragment)) is None:
        return value
    rest = "&".join(part for part in fragment.split("&") if not part.startswith("egg="))
    return f"{named[1]}{named[2]} @ {address}{f'#{rest}' if rest else ''}"


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


def bad_requirements(message: str) -> StageFailedError:
    """Return the error for requirements that cannot be used."""
    return StageFailedError(STEP, "EnvironmentFailed", message)


_WITH_BYTE_CODE = ".with-byte-code"  # this file marks a stored environment with bytecode
MAX_ENVIRONMENTS = 8  # if there are more, the least recently used ones are deleted


class EnvironmentStore:
    """The environments in a folder on a disk that outlives the node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy_to(self, name: str, target: Path) -> bool:
        """Copy the environment `name` to `target`. Return False if it is not available."""
        stored = self._folder / name
        if not is_usable(stored):
            _remove(stored)
            return False
        with suppress(OSError):
            os.utime(stored)  # the time of the last use
        return _link_tree(stored, target)

    def add(self, name: str, source: Path) -> None:
        """Store a complete environment if possible."""
        if (self._folder / name).is_dir():
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            _link_tree(source, self._folder / name)
            self._remove_old()

    def add_byte_code(self, name: str, source: Path) -> None:
        """Store the bytecode that the first script has written, if possible. Do it only once."""
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
        stored = [path for path in self._folder.iterdir() if path.is_dir() and "." not in path.name]
        stored.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in stored[MAX_ENVIRONMENTS:]:
            # A task that is copying this environment at the moment fails, and builds its own.
            _remove(path)


def is_usable(environment: Path) -> bool:
    """Return True if the environment and the interpreter that it links to exist."""
    return (environment / "bin" / "python").exists()


def _remove(environment: Path) -> None:
    from runner.node.environment.building import remove_environment  # noqa: PLC0415  few runs

    remove_environment(environment)


LAYER_FOLDER = "venv"  # in the task's working directory
_SHARED_PACKAGES = "_runner_shared.pth"
_OTHER_SHELLS = (".bat", ".fish", ".nu", ".ps1", ".xsh")  # of scripts that activate it
_MAX_SCRIPT_BYTES = 64 * 1024  # larger programs are no scripts


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
        **({"git": found} if (found := _packages_from_git(environment)) else {}),
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


def _packages_from_git(environment: Path) -> dict[str, str]:
    """Return `URL@COMMIT` of each package that was installed from git, by name."""
    found: dict[str, str] = {}
    for name, url, details in _direct_urls(shared_environment(environment), "vcs_info"):
        if commit := details.get("commit_id"):
            from runner.protocol.git_requirements import without_user  # noqa: PLC0415  few have

            found[name.replace("_", "-").lower()] = f"{without_user(url)}@{commit}"
    return dict(sorted(found.items()))


def _direct_urls(environment: Path, kind: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, URL and details of each package that was installed from such a URL.

    `kind` is `dir_info` or `vcs_info`: packaging.python.org/specifications/direct-url.
    """
    for file in environment.glob("lib/python*/site-packages/*.dist-info/direct_url.json"):
        with suppress(OSError, ValueError, AttributeError, KeyError):
            raw: dict[str, Any] = parse_json(file.read_bytes())
            details: dict[str, Any] | None = raw.get(kind)
            if details is not None:
                yield file.parent.name.partition("-")[0], str(raw["url"]), details


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
LAYOUT_VERSION = 3
# Azure's GPU image is Ubuntu 22.04 with Python 3.10, which NumPy, JAX and Keras no longer support.
# A recipe without `python` gets the version of Ubuntu 24.04 there.
MIN_PYTHON = (3, 11)
NEWER_PYTHON = "3.12"


@dataclass(frozen=True)
class Installation:
    """What is installed in an environment, as it is decided before the build.

    Attributes:
        requirements: The file that lists packages, or None.
        packages: Packages that it does not list.
        commits: The commits of branches and tags in git, by `GitAddress.key`.
        variables: Variables for uv, secrets included.
        arguments: Arguments of uv in addition to those of the requirements.
        identity: What distinguishes the environment besides the requirements and the packages.
        local: True if it depends on files of the code.
    """

    requirements: Requirements | None
    packages: Sequence[str]
    commits: Mapping[str, str]
    variables: Mapping[str, str] = field(repr=False)
    arguments: Sequence[str]
    identity: Mapping[str, object]
    local: bool

    @property
    def is_empty(self) -> bool:
        """True if nothing is installed."""
        return self.requirements is None and not self.packages

    def report_to(self, report: Report) -> None:
        """Report the start of the installation."""
        if self.requirements is not None:
            self.requirements.report_to(report)
        elif self.packages:
            report(f"installing {', '.join(self.packages)}")

    def hash(self, code_sha256: str, **more: object) -> str:
        """Return the name of the environment: a hash of all that decides its content."""
        key = {
            "requirements": self.requirements.texts if self.requirements else None,
            **({"packages": sorted(self.packages)} if self.packages else {}),
            # Packages that are installed from the code change with it.
            "code": code_sha256 if self.local else None,
            **self.identity,
            **more,
        }
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]

    def install_arguments(self, folder: Path, *, for_pip: bool = False) -> list[str | Path]:
        """Return the arguments of `uv pip install`, or of pip. `folder` is for changed copies."""
        found: list[str | Path] = [*self.packages]
        if self.requirements is not None:
            found += self.requirements.install_arguments(self.commits, folder, for_pip=for_pip)
        return found if for_pip else [*self.arguments, *found]


EDITABLES = "runner_editables.json"  # in an environment: folders of the code


class Builder:
    """Builds environments as `shared/runner/envs/<hash>`; `check` may raise to stop a build.

    Args:
        shared_dir: the shared folder of the node.
        report: receives progress.
        check: called while it waits.
        variables: the variables of the run.
        commits: the commits of branches and tags in git that the run recorded.

    Attributes:
        output: The commands that it ran and their output, the last 20,000 lines; empty if the
            environment was complete.
    """

    def __init__(
        self,
        shared_dir: Path,
        report: Report,
        check: Callable[[], None],
        variables: InstallVariables | None = None,
        commits: Mapping[str, str] | None = None,
    ) -> None:
        self._shared_dir = shared_dir
        self._root = shared_dir / "runner"
        self._envs = self._root / "envs"
        self._report = report
        self._check = check
        self._variables = variables
        self._commits = dict(commits or {})
        self._uv_variables: Mapping[str, str] = {}  # of the last plan
        self.output: deque[str] = deque(maxlen=MOST_LINES)
        self._installer = Installer(shared_dir, report, check, self.output.append)

    def _plan(self, code_dir: Path, file: str | None, packages: Sequence[str]) -> Installation:
        """Return what is installed; ask for the commits of branches that the run lacks."""
        requirements, packages = read_requirements(code_dir, file, packages)
        if requirements is None and not packages:
            return Installation(None, (), {}, {}, (), {}, local=False)
        settings = _uv_settings(code_dir)
        brought = "\n".join(settings.values())
        texts = "\n".join((*(requirements.texts.values() if requirements else ()), brought))
        values = self._variables.values(texts) if self._variables else {}
        commits = self._find_commits(requirements, values)
        identity = {
            **({"settings": settings} if settings else {}),
            **({"commits": commits} if commits else {}),
            **(self._variables.identity(texts) if self._variables else {}),
        }
        variables, arguments, is_local = dict[str, str](), list[str](), False
        has_extra_index = requirements is not None and requirements.has_extra_index
        if values or has_extra_index:
            from runner.node.environment.install_variables import (  # noqa: PLC0415  few runs
                named_files,
                with_pip_variables,
            )

            is_local = bool(named_files(values))
            variables, arguments, notes = with_pip_variables(
                values,
                code_dir,
                brought,
                has_index=requirements is not None and requirements.has_index,
                has_extra_index=has_extra_index,
            )
            self.output.extend(notes)
        self._uv_variables = variables
        is_local = is_local or (requirements is not None and requirements.local)
        return Installation(
            requirements, packages, commits, variables, arguments, identity, local=is_local
        )

    def _find_commits(
        self, requirements: Requirements | None, values: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the commits of branches and tags: those of the run, or else the present ones."""
        addresses = requirements.git_addresses() if requirements else []
        known = {
            each.key: self._commits[each.key] for each in addresses if each.key in self._commits
        }
        missing = [each for each in addresses if each.key not in known and not each.is_commit]
        found, problems = dict[str, str](), dict[str, str]()
        if missing:
            from runner.protocol.git_requirements import resolve  # noqa: PLC0415  the client did

            found, problems = resolve(missing, values, os.environ)
        self.output.extend(f"{key} is {commit}" for key, commit in {**known, **found}.items())
        self.output.extend(f"{key}: no commit: {why}" for key, why in problems.items())
        return {**known, **found}

    def layer_of(self, environment: Path, layer: Path, code_dir: Path) -> Path:
        """Return the task's own layer of an environment, with the editable packages of its code.

        An environment that is not in the shared folder is returned as it is.

        Raises:
            StageFailedError: a package cannot be installed.
        """
        if not environment.is_relative_to(self._shared_dir):
            return environment
        private_layer(environment, layer)
        with suppress(OSError, ValueError):
            folders: list[str] = parse_json((environment / EDITABLES).read_bytes())
            self._install_editables(layer, [code_dir / folder for folder in folders], code_dir)
        return layer

    @property
    def _uv_cache(self) -> Path:
        """The downloads of uv: not in `cache`, which may link to what a container lacks."""
        return self._root / "uv-of-containers"

    def _find_uv(self) -> Path | None:
        """Return uv, or None if pip has to install packages. Raise StageFailedError."""
        return find_uv(self._shared_dir)

    def _install_editables(self, layer: Path, folders: Sequence[Path], code_dir: Path) -> None:
        """Install folders of the code in a layer, which has the packages that they need.

        uv does it without the network if possible.
        """
        uv, variables = self._find_uv(), {**uv_environment(self._uv_cache), **self._uv_variables}
        install, _ = package_commands(uv, layer)
        words = ["--no-deps", *(word for folder in folders for word in ("-e", folder))]
        if uv is not None:
            try:
                self._install([*install, "--offline", *words], variables, code_dir, layer)
                return
            except StageFailedError as err:
                if err.code == "DiskFull":
                    raise
        self._install([*install, *words], variables, code_dir, layer)

    def _install(
        self,
        command: Sequence[str | Path],
        variables: Mapping[str, str],
        code_dir: Path,
        environment: Path,  # noqa: ARG002  of subclasses
    ) -> None:
        """Run a command that installs packages in an environment."""
        self._installer.run(command, variables, code_dir)

    def _complete(
        self,
        building: Path,
        code_dir: Path,
        uninstall: Sequence[str | Path],
        variables: Mapping[str, str],
    ) -> None:
        """Remove what belongs to one task from an environment for all.

        These are copies of requirements, and editable packages, which refer to a folder of the
        task. Their dependencies stay, and `layer_of` installs them again for each task.
        """
        for copy in COPIES:
            (building / copy).unlink(missing_ok=True)
        found = {
            name: Path(unquote(urlsplit(url).path)).resolve()
            for name, url, details in _direct_urls(building, "dir_info")
            if details.get("editable")
        }
        if not found:
            return
        root, folders = code_dir.resolve(), list[str]()
        for name, folder in found.items():
            if not folder.is_relative_to(root):
                raise bad_requirements(
                    f"the editable package {name} is in {folder}, outside the code's folder"
                )
            folders.append(str(folder.relative_to(root)))
        self._installer.run([*uninstall, *found], variables, code_dir)
        (building / EDITABLES).write_text(json.dumps(folders), encoding="utf-8")

    def _while_waiting(self) -> None:
        self._report("another task is building the same environment")
        self._check()


class EnvironmentBuilder(Builder):
    """Builds environments with the Python of the node, or another one that uv installs."""

    @property
    def _cache(self) -> Path:
        return self._root / "cache"

    @property
    def _uv_cache(self) -> Path:
        return self._cache / "uv"

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
        plan = self._plan(code_dir, requirements_file, packages)
        python = _choose_python(python)
        interpreter = Path(sys.executable) if python is None else self._find_python(python)
        target = self._envs / plan.hash(
            code_sha256,
            layout=LAYOUT_VERSION,
            python=str(interpreter.resolve()),
            version=sys.version if python is None else python,
            platform=[sysconfig.get_platform(), *_find_libc()],
        )
        if constraints and not plan.is_empty and not _has_versions(target, constraints):
            name = f"{target.name}:{json.dumps(sorted(constraints))}"
            target = self._envs / hashlib.sha256(name.encode()).hexdigest()[:32]
        if is_usable(target):
            self._report("environment is cached")
            if (store := self._find_store()) is not None:
                store.add_byte_code(target.name, target)
            return target
        # The lock is in the cache, so that nodes that share a cache build an environment once.
        with node_lock(self._cache / "locks" / target.name, self._while_waiting):
            if is_usable(target):
                self._report("environment is cached")
                return target
            if not self._restore(target):
                self._build(interpreter, plan, code_dir, target, constraints)
                if (store := self._find_store()) is not None:
                    store.add(target.name, target)
        return target

    def _restore(self, target: Path) -> bool:
        """Replace an environment by the stored one. Return False if there is none."""
        _remove(target)
        store = self._find_store()
        if store is None or not store.copy_to(target.name, target):
            return False
        self._report("environment is cached")
        return True

    def _find_store(self) -> EnvironmentStore | None:
        """Return the environments on a disk that outlives the node, if the cache is there."""
        return EnvironmentStore(self._cache / "envs") if self._cache.is_symlink() else None

    def _build(
        self,
        interpreter: Path,
        plan: Installation,
        code_dir: Path,
        target: Path,
        constraints: Sequence[str],
    ) -> None:
        """Build the environment in a new folder, and rename it to `target`."""
        from runner.node.environment.building import (  # noqa: PLC0415  most nodes have it
            add_pip,
            add_uv,
            new_environment,
        )

        plan.report_to(self._report)
        uv = find_uv(self._shared_dir)
        environment = {**uv_environment(self._uv_cache), **plan.variables}
        with new_environment(target) as building:
            # Relocatable, because the folder is renamed afterwards.
            venv = [uv, "venv", "--relocatable", "--no-project", "--python", interpreter, building]
            self._installer.run(venv, environment, code_dir)
            if arguments := plan.install_arguments(building):
                install, uninstall = package_commands(uv, building)
                if constraints:
                    pinned = building / "constraints.txt"
                    pinned.write_text("\n".join(constraints), encoding="utf-8")
                    install += ["-c", pinned]
                # Without --compile-bytecode, because scripts import only a part of the modules: all
                # of Keras and JAX take 13 s of CPU, the imported ones 3 s.
                install += arguments
                self._install(install, environment, code_dir, building)
                self._complete(building, code_dir, uninstall, environment)
            (building / ".lock").unlink(missing_ok=True)  # of uv; a script could hold it
            add_pip(building)
            add_uv(building)
            building.rename(target)

    def _install(
        self,
        command: Sequence[str | Path],
        variables: Mapping[str, str],
        code_dir: Path,
        environment: Path,
    ) -> None:
        """Install packages so that none can change what other environments get."""
        self._installer.install(command, variables, code_dir, environment, self._uv_cache)

    def _find_python(self, request: str) -> Path:
        """Return uv's interpreter for a request such as `3.12` or `>=3.11`; may download it.

        Raises:
            StageFailedError: no such interpreter is on the node, and uv cannot download it.
        """
        variables = {
            **uv_environment(self._uv_cache),
            **(self._variables.values("") if self._variables else {}),
        }
        # Store a downloaded interpreter for all tasks of the node, not in the home of this one.
        variables.setdefault("UV_PYTHON_INSTALL_DIR", str(self._cache / "python"))
        return self._installer.find_python(request, variables)


def _choose_python(request: str | None) -> str | None:
    """Return the request for uv, or None if the Python of the node will do."""
    if request is not None and not is_range(request):
        return request
    is_old = sys.version_info[:2] < MIN_PYTHON
    newer = tuple(map(int, NEWER_PYTHON.split(".")))
    if is_old and (request is None or meets(request, newer)):
        return NEWER_PYTHON
    return None if request is None or meets(request, sys.version_info[:3]) else request


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
