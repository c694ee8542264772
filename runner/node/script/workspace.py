"""Create the folders of the script, unpack its code, and add `runner.hooks` and a shell file."""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import pkgutil
import re
import shlex
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path, PurePosixPath

from runner.node.failures import DISK_FULL_TEXT, StageFailedError
from runner.node.script.command import kill_remaining_processes
from runner.protocol.host import format_size, remove_tree
from runner.protocol.task import (
    CODE_TIME,
    MAX_CODE_BYTES,
    MAX_CODE_FILES,
    NOTEBOOK_MODULE,
    SHELL_FILE,
    WORKER_LOG,
)

logger = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the ID of the node's present start; empty if the kernel has none."""
    return _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""


CODE_STAGE = "code"
MAX_READ_BYTES = 1 << 20  # of a code archive at once
MAX_NAME = 4096  # Linux cannot open longer paths
RESTORE_PART = ".restoring."  # in the name of a folder that is being restored
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Secrets of the task. The shell file must not contain them, because others may read node files.
_HIDDEN_VARIABLES = frozenset({"AZ_BATCH_AUTHENTICATION_TOKEN"})


def unpack_code(archive: Path, target: Path, sha256: str) -> None:
    """Unpack `archive` into the new folder `target`.

    Absolute names, `..`, links that leave the folder and special files are rejected before anything
    is written, and so is an archive that is larger than the limits for packing.

    Raises:
        StageFailedError: the archive has another hash, is damaged, or contains such a member.
    """
    content = _read_checked(archive, sha256)
    remove_tree(target)
    target.mkdir(parents=True)
    try:
        source = _CodeFile(fileobj=io.BytesIO(content))
        with source as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = _check_members(tar, file)
            file.left_bytes = MAX_CODE_BYTES + len(members) * MAX_READ_BYTES
            # Python 3.14 would rewrite the targets of links by default; the members were checked.
            tar.extraction_filter = lambda member, _: member
            for member in members:
                _extract_member(tar, member, target)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise _invalid_code(f"{archive.name} is not a complete tar.gz: {err}") from err


class _CodeFile(gzip.GzipFile):
    """A gzip file of which tarfile reads small headers only: a long one fails, not the memory.

    Some versions of tarfile read a long header at once, others in parts, so the bytes count that
    are read since the start of a header. Skipped content does not count.
    """

    left_bytes = MAX_READ_BYTES

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes. Raise TarError for more than a header can need."""
        if size is None or not 0 <= size <= self.left_bytes:
            raise tarfile.ReadError("a header is too long")
        self.left_bytes -= size
        return super().read(size)


def _check_members(tar: tarfile.TarFile, file: _CodeFile) -> list[tarfile.TarInfo]:
    """Return the members, of which headers are read one by one. Raise StageFailedError."""
    found: list[tarfile.TarInfo] = []
    left = MAX_CODE_BYTES
    for count, member in enumerate(tar, 1):  # the next header comes after the content of this one
        file.left_bytes = MAX_READ_BYTES
        left -= member.size
        if left < 0 or member.size < 0:
            raise _invalid_code(f"the code archive holds more than {format_size(MAX_CODE_BYTES)}")
        if count > MAX_CODE_FILES:
            raise _invalid_code(f"the code archive holds more than {MAX_CODE_FILES:,} files")
        if PurePosixPath(member.name).parts:
            _check_member(member)
            found.append(member)
    return found


def _read_checked(archive: Path, sha256: str) -> bytes:
    """Return the content, read once: a process of an earlier attempt may write to the file."""
    if not archive.is_file():
        raise _invalid_code(
            f"{archive.name} is not in the folder of the task: its resource file is missing"
        )
    content = archive.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise _invalid_code(
            f"{archive.name} differs from the submitted file: sha256 is {found}, not {sha256}"
        )
    return content


def _check_member(member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if len(member.name) > MAX_NAME or len(member.linkname) > MAX_NAME:
        raise _invalid_code(f"the code archive has a name of {len(member.name):,} characters")
    if name.is_absolute() or ".." in name.parts:
        raise _invalid_code(f"the code archive names a file outside its folder: {member.name!r}")
    if member.islnk() or member.issym():
        # The target of a symbolic link is relative to its folder, that of a hard link to the root.
        start = name.parent if member.issym() else PurePosixPath()
        if _leaves_folder(start, PurePosixPath(member.linkname)):
            raise _invalid_code(f"the link {member.name!r} leaves the folder of the code")
    elif not (member.isfile() or member.isdir()) or member.issparse():
        raise _invalid_code(f"{member.name!r} is neither a file, a folder nor a link")


def _leaves_folder(start: PurePosixPath, link: PurePosixPath) -> bool:
    if link.is_absolute():
        return True
    depth = len(start.parts)
    for part in link.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def _extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    # Never write through a link that an earlier member has created.
    parent = (target / member.name).parent
    if not Path(os.path.realpath(parent)).is_relative_to(os.path.realpath(target)):
        raise _invalid_code(
            f"{member.name!r} would be written through a link out of the code's folder"
        )
    member.uid = member.gid = os.getuid()
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.mtime = max(member.mtime, CODE_TIME)  # zip, and so wheels and make_archive, need 1980
    tar.extract(member, target, set_attrs=not member.issym())


def _invalid_code(message: str) -> StageFailedError:
    return StageFailedError(CODE_STAGE, "CodeInvalid", message)


HOOKS_FOLDER = "hooks"
_REPLACED = (
    "snapshots",
    "venv",
    "finished.part",
    "reserve",
    WORKER_LOG,
)  # names that only the agent uses
START_FOLDER = "at-start"  # not the name of a module
PRIVATE_PACKAGE = "_runner_hooks"
WRITTEN_PATHS = "written-paths"
STACKS = "stacks.txt"
_RUNNER = Path(__file__).parents[2]
STACKS_SIGNAL = 61  # a real-time signal of Linux that no known program uses
# Python imports it when it starts. It ends by importing the `sitecustomize` that it has replaced.
# Its folders become the last of sys.path, so that they hide no module of the script.
_SITECUSTOMIZE = """\
import importlib, os, sys
here = os.path.dirname(os.path.abspath(__file__))
others = [path for path in sys.path if os.path.abspath(path) != here]
sys.path[:] = others + [os.path.dirname(here), here]
try:
    if {recorded!r}:
        importlib.import_module("{package}.written_paths").install({record!r}, {ignored!r})
except Exception as err:
    sys.stderr.write("runner: files at other paths are not recorded: %s\\n" % err)
try:
    if {stacks!r}:
        import faulthandler
        faulthandler.register({signal}, open({stacks!r}, "a"), True)
except Exception as err:
    sys.stderr.write("runner: stacks cannot be dumped: %s\\n" % err)
try:
    if {automatic!r} and sys.version_info >= (3, 8):
        importlib.import_module("{package}.automatic.imports").install()
except Exception as err:
    sys.stderr.write("runner: there are no automatic checkpoints: %s\\n" % err)
machinery = importlib.import_module("importlib.machinery")
spec = machinery.PathFinder.find_spec("sitecustomize", others)
if spec is not None and spec.loader is not None:
    module = importlib.import_module("importlib.util").module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)
"""


def python_path(
    given: str | None,
    work_dir: Path,
    *,
    shared_dir: Path | None = None,
    automatic: bool = False,
    recorded: bool = True,
    stacks: bool = False,
) -> str:
    """Return PYTHONPATH for the script: a `sitecustomize`, which adds `runner.hooks`, and `given`.

    `runner` is a namespace package there, the last of sys.path. A module or package `runner` of the
    script or of its requirements is therefore imported instead. This product's package includes the
    hooks. A folder `runner` without `__init__.py` and the hooks are found together.

    Args:
        given: the PYTHONPATH of the user, or None.
        work_dir: the task's working directory.
        shared_dir: the folder that the tasks of this node share, or None.
        automatic: let each Python save checkpoints of known frameworks.
        recorded: let each Python record the paths that it writes to.
        stacks: let each Python dump its stacks when it gets STACKS_SIGNAL.
    """
    _place(work_dir / HOOKS_FOLDER / "runner", _public_hooks(), shared_dir)
    start = _write_start(
        work_dir, shared_dir, automatic=automatic, recorded=recorded, stacks=stacks
    )
    return os.pathsep.join((str(start), *([given] if given else ())))


def own_script(words: Sequence[str], work_dir: Path) -> list[str]:
    """Return a command with the file of a notebook's executor in place of its module.

    Python would search `runner`, and every module that the executor imports, in the current folder
    first, which is that of the code. The file is alone in its folder, which is searched instead.
    """
    if tuple(words[1:3]) != ("-m", NOTEBOOK_MODULE):
        return list(words)
    file = work_dir / HOOKS_FOLDER / "notebook" / "runner_notebook.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_read_hook("notebook.py"))
    return [words[0], str(file), *words[3:]]


def _write_start(
    work_dir: Path, shared_dir: Path | None, *, automatic: bool, recorded: bool, stacks: bool
) -> Path:
    """Write the folder with the `sitecustomize` of `python_path`."""
    folder, record = work_dir / HOOKS_FOLDER / START_FOLDER, written_paths_file(work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    stacks_file(work_dir).unlink(missing_ok=True)
    _place(folder / PRIVATE_PACKAGE, _private_hooks(), shared_dir)
    ignored = [str(work_dir), os.path.realpath(work_dir)]
    text = _SITECUSTOMIZE.format(
        record=str(record),
        recorded=recorded,
        ignored=ignored,
        automatic=automatic,
        stacks=str(stacks_file(work_dir)) if stacks else "",
        signal=STACKS_SIGNAL,
        package=PRIVATE_PACKAGE,
    )
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return folder


MAX_COMPILED = 16  # folders of compiled programs; the least recently created ones are deleted


def compiled_folder(shared_dir: Path, code_sha256: str) -> Path:
    """Return the folder of compiled programs of JAX, which tasks of this node with one code share.

    A run executes what is in it, and other code could write something else there.
    """
    return shared_dir / "runner" / "cache" / "jax" / code_sha256


def compilation_variables(shared_dir: Path, code_sha256: str) -> dict[str, str]:
    """Return variables that let JAX use programs that earlier attempts or runs here compiled.

    Otherwise, each start compiles anew, which takes 10 of the 15 s of CPU time of a short training
    on MNIST. JAX derives the names of the files from the program, its own version and the devices.
    It skips files that it cannot read. Of several processes, only the main one uses the folder.
    Source: https://docs.jax.dev/en/latest/persistent_compilation_cache.html (2026-11-25).
    """
    folder = compiled_folder(shared_dir, code_sha256)
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            others = sorted(folder.parent.iterdir(), key=lambda each: each.stat().st_mtime)
            for old in others[:-MAX_COMPILED]:
                remove_tree(old)
                old.unlink(missing_ok=True)
    except OSError:  # for example, a container in which the cache of the node is not mounted
        return {}
    return {
        # The path is part of the key of a program, and nodes may have links to one cache.
        "JAX_COMPILATION_CACHE_DIR": str(folder.resolve()),
        # By default, JAX stores only programs that took a second to compile, which is about half of
        # those of a small network.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def hook_folders(work_dir: Path) -> list[Path]:
    """Return the folders of this node that the hooks of a task are links to."""
    hooks = work_dir / HOOKS_FOLDER
    links = (hooks / "runner", hooks / START_FOLDER / PRIVATE_PACKAGE)
    return [link.resolve() for link in links if link.is_symlink()]


def stacks_file(work_dir: Path) -> Path:
    """Return the file that Python processes of the script dump their stacks to."""
    return work_dir / HOOKS_FOLDER / STACKS


def written_paths_file(work_dir: Path) -> Path:
    """Return the file with the paths outside of the task that Python processes wrote to."""
    return work_dir / HOOKS_FOLDER / WRITTEN_PATHS


@cache
def _private_hooks() -> Mapping[str, bytes]:
    """Return all hooks as the files of a package whose name no package of the script has."""
    names = [*_hook_files(""), *_hook_files("automatic/")]
    private = PRIVATE_PACKAGE.encode()
    files = {name: _read_hook(name).replace(b"runner.hooks", private) for name in names}
    return {**files, "__init__.py": b""}  # the original imports more than a start needs


@cache
def _public_hooks() -> Mapping[str, bytes]:
    """Return the files of the namespace package `runner` with `runner.hooks` and nothing else."""
    return {f"hooks/{name}": _read_hook(name) for name in _hook_files("")}


def _place(package: Path, files: Mapping[str, bytes], shared_dir: Path | None) -> None:
    """Write the files of a package, as a link to a folder of the node if that is possible.

    Python then compiles the package once per node and not in each task.
    """
    remove_tree(package)
    package.unlink(missing_ok=True)
    package.parent.mkdir(parents=True, exist_ok=True)
    if shared_dir is not None:
        with suppress(OSError):  # for example, a container without the folder of the node
            package.symlink_to(_kept_on_node(files, shared_dir / "runner" / "hooks"))
            return
    _write_files(package, files)


def _kept_on_node(files: Mapping[str, bytes], folder: Path) -> Path:
    """Return a folder with the files, made by the first task that needs it. Raise OSError.

    It belongs to one start of the node, because a node that lost power may have empty files.
    """
    digest = hashlib.sha256(boot_id().encode())
    for name, content in files.items():
        digest.update(f"{name}:{len(content)}:".encode() + content)
    kept = folder / digest.hexdigest()[:32]
    if kept.is_dir():
        return kept
    part = folder / f"{kept.name}.{os.getpid()}"
    try:
        _write_files(part, files)
        part.rename(kept)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not kept.is_dir():  # otherwise, another task made it
            raise
    return kept


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _hook_files(below: str) -> list[str]:
    """Return the modules of `runner.hooks` in a folder, as paths in that package.

    `pkgutil` is used because the importer of the agent's archive knows its directory already.
    importlib.resources reads it again for each module, which took longer than everything else
    before the script.
    """
    folder = f"{_RUNNER}/hooks/{below}".rstrip("/")
    modules = [each.name for each in pkgutil.iter_modules([folder]) if not each.ispkg]
    return [f"{below}{name}.py" for name in ("__init__", *modules)]


def _read_hook(name: str) -> bytes:
    """Return the source of a module of `runner.hooks`."""
    found = pkgutil.get_data("runner", f"hooks/{name}")
    if found is None:
        raise FileNotFoundError(name)
    return found


@dataclass(frozen=True)
class AttemptDirs:
    """The folders and files of an attempt, below the task's working directory."""

    code: Path
    output: Path
    checkpoints: Path
    logs: Path

    @classmethod
    def below(cls, work_dir: Path) -> AttemptDirs:
        """Return the folders below a task's working directory. They may not exist."""
        return cls(*(work_dir / each.name for each in fields(cls)))

    @property
    def stdout(self) -> Path:
        """The script's standard output."""
        return self.logs / "stdout.txt"

    @property
    def stderr(self) -> Path:
        """The script's standard error."""
        return self.logs / "stderr.txt"

    @property
    def metrics(self) -> Path:
        """`$RUNNER_METRICS_FILE`."""
        return self.logs / "metrics.jsonl"

    @property
    def params(self) -> Path:
        """`$RUNNER_PARAMS`."""
        return self.logs / "params.json"


def make_dirs(work_dir: Path, *, keep_written: bool = False, is_quiet: bool = False) -> AttemptDirs:
    """Create empty folders, and kill processes that remained of an earlier attempt on this node.

    Args:
        work_dir: the task's working directory.
        keep_written: keep `code` and `output` with the files that the earlier attempt wrote.
        is_quiet: no process of an earlier attempt is left, so none is searched for.
    """
    if not is_quiet:
        kill_remaining_processes(work_dir, work_dir / "logs")
    for part in work_dir.glob(f"checkpoints{RESTORE_PART}*"):
        remove_tree(part)  # from an interrupted restore
    _clear(work_dir / HOOKS_FOLDER)
    for name in _REPLACED:
        if (work_dir / name).is_symlink():  # of the script: the agent would follow it
            (work_dir / name).unlink()
    dirs = AttemptDirs.below(work_dir)
    kept = (dirs.code, dirs.output) if keep_written else ()
    for folder in (dirs.code, dirs.output, dirs.checkpoints, dirs.logs):
        if folder not in kept:
            _clear(folder)
            folder.mkdir(parents=True)
    return dirs


def _clear(path: Path) -> None:
    """Delete a folder, even if the script replaced it or made it unreadable."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        remove_tree(path)


class TempFolder:
    """The folder of a script's temporary files, so that the agent knows which are the script's.

    `path` is None without such a folder.
    """

    def __init__(self, work_dir: Path) -> None:
        # The name is derived from the task's folder, so that later attempts find and remove it. It
        # is below the system's temporary folder because paths of sockets must be short.
        digest = hashlib.sha256(str(work_dir).encode()).hexdigest()
        self._own = Path(tempfile.gettempdir(), f"run-{digest[:12]}")
        self.path: Path | None = None

    def create(self, given: Collection[str]) -> None:
        """Create the folder, unless a variable in `given` names one or none can be created."""
        self.remove()
        if not {"TMPDIR", "TEMP", "TMP"}.isdisjoint(given):
            return
        try:
            try:
                self._own.mkdir(mode=0o700)
                self.path = self._own
            except FileExistsError:  # owned by another user
                self.path = Path(tempfile.mkdtemp(prefix="run-"))
        except OSError as err:
            logger.warning("no folder for temporary files: %s", err)

    def remove(self) -> None:
        """Remove the folder, also that of an attempt that was killed."""
        for folder in {self._own, self.path or self._own}:
            remove_tree(folder)


def write_shell_file(
    folder: Path, environment: Mapping[str, str], secrets: Container[str] = ()
) -> None:
    """Write `environment.sh`, which only the owner can read, without the values of `secrets`."""
    lines: list[str] = []
    for name, value in sorted(environment.items()):
        if not _VARIABLE_NAME.fullmatch(name):
            continue  # not a valid shell variable
        if name in secrets or name in _HIDDEN_VARIABLES:
            lines.append(f"# {name} is omitted: it is a secret")
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    part = folder / f".{SHELL_FILE}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("\n".join(lines) + "\n")
        part.replace(folder / SHELL_FILE)
    except OSError as err:
        # Only `runner exec` and `runner ssh` use it, so the run continues.
        logger.warning("cannot write the environment for a shell: %s", err)


# The texts that scripts print for ENOSPC and EDQUOT.
_DISK_FULL_LINE = re.compile(rf"[^\n]*(?:{DISK_FULL_TEXT}|Disk quota exceeded)[^\n]*")
_SHARED_MEMORY = ("/shm/", "/torch_", "shared memory")  # full shared memory has the same text
_MAX_LINE = 300

FULL_BELOW_BYTES = 1 << 20


def full_disk_text(folder: Path) -> str | None:
    """Return a message if less than 1 MiB is free on the folder's disk, else None."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None  # the script removed the folder
    if usage.free >= FULL_BELOW_BYTES:
        return None
    return f"the node's disk is full ({usage.used >> 20} of {usage.total >> 20} MiB used)"


def disk_full_line(text: str) -> str | None:
    """Return the last line of a script's output that reports a full disk, or None."""
    for line in reversed(_DISK_FULL_LINE.findall(text)):
        if not any(name in line for name in _SHARED_MEMORY):
            return line.strip()[:_MAX_LINE]
    return None


RESERVE_BYTES = 8 << 20
# Longer than another program fills the disk by mistake; a run on a full disk ends in a minute.
_STAYS_FULL_S = 40.0


class DiskReserve:
    """Blocks of the disk that a script cannot use, if the local services are on the same disk.

    They could not store the result of a script that fills it. `release` frees the blocks.
    """

    def __init__(self, work_dir: Path, *, shared: bool) -> None:
        self._work_dir = work_dir
        self._path = work_dir / "reserve"
        self._shared = shared
        self._full_since: float | None = None
        self.full = ""  # the message, once the script has ended on a full disk

    def keep(self) -> None:
        """Take the blocks, unless the disk is small."""
        self.free()
        if not self._shared:
            return
        with suppress(OSError):
            size = min(RESERVE_BYTES, shutil.disk_usage(self._work_dir).free // 2)
            if size < 2 * FULL_BELOW_BYTES:
                return
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)

    def stays_full(self) -> bool:
        """Return True if the services cannot work, because the disk has been full for some time."""
        if not self._shared or full_disk_text(self._work_dir) is None:
            self._full_since = None
            return False
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        return now - self._full_since >= _STAYS_FULL_S

    def release(self) -> None:
        """Free the blocks after the script, and remember whether the disk is full.

        If it is full nevertheless, delete what the script wrote, for which storage has no room.
        """
        self.full = full_disk_text(self._work_dir) or ""
        self.free()
        if self._shared and full_disk_text(self._work_dir):
            logger.error("deleting what the script wrote: the local services have no room")
            remove_written(AttemptDirs.below(self._work_dir))

    def free(self) -> None:
        """Free the blocks, also those of an attempt that was killed."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def room_bytes(self) -> int | None:
        """Return how much storage can take that is on the same full disk, or None if it is not."""
        if not (self._shared and self.full):
            return None
        with suppress(OSError):
            return max(shutil.disk_usage(self._work_dir).free - RESERVE_BYTES // 2, 0) // 2
        return 0


def remove_written(dirs: AttemptDirs) -> None:
    """Delete what a script wrote to its folders, which filled the disk for the next run."""
    for folder in (dirs.code, dirs.output):
        _clear(folder)
        folder.mkdir(exist_ok=True)
