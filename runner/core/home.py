"""The paths below RUNNER_HOME, all defined in one class."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.protocol.errors import RunnerError

_STACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class HomePaths:
    """Files and folders of one installation; none of them is created."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.local = home / "local"  # state of the local services
        self.keys = self.local / "keys.json"  # their account keys, readable by the owner only
        self.local_outputs = self.local / "outputs.json"  # their StackOutputs
        self.local_state = self.local / "state.json"  # their ports, sizes and process IDs
        self.logs = self.local / "logs"
        self.batch_data = self.local / "batch"  # data of the emulator: database and nodes
        self.blob_data = self.local / "blob"  # data of Azurite
        self.reserve = (
            self.local / "reserve"
        )  # deleted on a full disk, so that deletions can be recorded
        # Held while the local services are started, stopped or changed.
        self.local_lock = home / "local.lock"
        self.stored_code = home / "stored-code.json"  # ETags of code that this machine stored
        self.compared = home / "compared"  # one file per container: when its indexes were compared
        self.cache = home / "cache"  # packages, shared by nodes and kept when they are deleted
        self.submissions = home / "submissions"  # digests of own submissions with secrets
        self.ssh = home / "ssh"  # SSH keys, one folder per node, removed when the shell ends
        self.export_lock = home / "export.lock"  # held while a run is exported
        self.tensorboard = home / "tensorboard"  # event files by process; safe to delete
        self.prices = home / "prices.csv"  # prices newer than the packaged table

    def stack_outputs(self, stack: str) -> Path:
        """Return the path of a stack's cached outputs. Raise RunnerError for an invalid name."""
        if not _STACK_NAME.fullmatch(stack):
            raise RunnerError(
                "R-STACK-NAME",
                f"invalid stack name {stack!r}",
                why="allowed: letters, digits, '.', '_' and '-'",
                fix="use a valid name, such as --stack dev",
            )
        return self.home / "stacks" / f"{stack}.json"

    def data(self, dataset: str) -> Path:
        """Return the cache folder of one data set."""
        return self.home / "data" / dataset

    def azurite(self, version: str) -> Path:
        """Return the folder of an installed version of Azurite."""
        return self.home / "azurite" / version

    def node(self, version: str) -> Path:
        """Return the folder of an installed version of Node.js, used if the system has none."""
        return self.home / "node" / version


def runner_home(env: Mapping[str, str]) -> Path:
    """Return the folder of all state: `RUNNER_HOME`, else the platform's user data folder."""
    given = env.get("RUNNER_HOME")
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs  # noqa: PLC0415  only needed when RUNNER_HOME is not set

    return Path(platformdirs.user_data_dir("runner", appauthor=False))


def cache_variables(paths: HomePaths, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that let npm and uv keep their caches here if HOME cannot be written."""
    if os.access(env.get("HOME") or "/nonexistent", os.W_OK):
        return {}
    caches = {"npm_config_cache": "npm", "UV_CACHE_DIR": "uv"}
    return {name: str(paths.cache / folder) for name, folder in caches.items() if name not in env}


# What programs need to run, to print and to download; no variable of a service or with a token.
_KEPT_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "TMP", "TEMP"),
        *("LANG", "LANGUAGE", "PYTHONPATH", "PYTHONUTF8", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "RUNNER_HOME", "RUNNER_UV", "RUNNER_DATA_DIR"),
        *("SYSTEMROOT", "PATHEXT", "COMSPEC", "USERPROFILE", "APPDATA", "LOCALAPPDATA"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
        *("UV_CACHE_DIR", "NPM_CONFIG_CACHE", "HF_HOME", "HF_ENDPOINT"),
    }
)


def code_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for code of a recipe's folder that runs on this machine."""
    return {
        name: value
        for name, value in env.items()
        if name.upper() in _KEPT_VARIABLES or name.startswith("LC_")
    }


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents with mode 700, regardless of the umask.

    Raises:
        OSError: one of them cannot be created.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def is_private(folder: Path) -> bool:
    """Return True if only this user can write to a folder; False if it cannot be read."""
    if not hasattr(os, "geteuid"):  # Windows
        return True
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def check_owner(home: Path) -> None:
    """Raise R-HOME-OWNER if the folder of all state belongs to another user.

    It has programs that we execute, and the addresses and keys of the services. Root may use the
    folder of another user, for example one that is mounted in a container, but not in a folder such
    as /tmp, where everybody can make one.
    """
    if not hasattr(os, "geteuid"):  # Windows
        return
    try:
        owner, parent = home.stat().st_uid, home.parent.stat()
    except OSError:  # it is created as ours, or reported when it is used
        return
    me = os.geteuid()
    if owner in (me, 0) or (me == 0 and not parent.st_mode & 0o002):
        return
    raise RunnerError(
        "R-HOME-OWNER",
        f"{home} belongs to another user",
        why=f"user {owner} could put programs and addresses of services there",
        fix="set RUNNER_HOME to a folder of yours, or unset it",
    )


_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = "is mounted read-only"
# Limits of the emulator: it starts no task on a disk with less free space.
_MIN_FREE_BYTES = 1 << 20
_MIN_FREE_INODES = 64


# Less than the emulator requires to start a task, and enough to record some hundred deletions.
_RESERVE_BYTES = _MIN_FREE_BYTES * 3 // 4


def keep_reserve(paths: HomePaths) -> None:
    """Write the reserve file of the local services again if the disk has room for it."""
    try:
        free = shutil.disk_usage(paths.local).free
        if free >= 4 * _MIN_FREE_BYTES and not paths.reserve.exists():
            paths.reserve.touch(mode=0o600)
            paths.reserve.write_bytes(
                os.urandom(_RESERVE_BYTES)
            )  # random data, which file systems cannot compress
    except OSError:
        return  # there are no services, or the disk is full again


@contextmanager
def disk_reserve(paths: HomePaths) -> Generator[None]:
    """Delete the reserve file if the disk is full, so that the body can record what it deletes.

    Afterwards, the file is written again.
    """
    if full_disk(paths.local) is not None:
        with suppress(OSError):
            paths.reserve.unlink(missing_ok=True)
    try:
        yield
    finally:
        keep_reserve(paths)


def not_writable(folder: Path, err: OSError) -> RunnerError:
    """Return the error for a home or output folder that cannot be written."""
    why = err.strerror or str(err)
    if err.errno in _DISK_FULL_ERRORS or err.errno == errno.EROFS:
        return full_disk(folder) or _disk_error(folder, why, folder)
    return RunnerError(
        "R-HOME-WRITE",
        f"cannot write to {folder}",
        why=why,
        fix="make the folder writable, or set RUNNER_HOME to another folder",
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a file of text atomically, readable only by its owner. It ends with a line break."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        make_private(path.parent)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text.rstrip("\n") + "\n")
        temporary.replace(path)
    except OSError as err:
        with suppress(OSError):  # this also fails on a read-only disk
            temporary.unlink(missing_ok=True)
        raise not_writable(path.parent, err) from err


def existing_folder(path: Path) -> Path:
    """Return the path if it exists, else the nearest of its parents that exists."""
    absolute = path.absolute()
    return next(one for one in (absolute, *absolute.parents) if one.exists())


def check_room(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise R-DISK-SPACE if the disk of a folder, which need not exist, has too little space."""
    there = existing_folder(Path(os.path.realpath(folder)))
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise RunnerError(
            "R-DISK-SPACE",
            f"too little disk space for {what}",
            why=f"{there} has {free >> 20:,} MB free, and {needed_bytes >> 20:,} MB are needed",
            fix="free disk space on this machine, or set RUNNER_HOME to a folder on another disk",
        )


def full_disk(path: Path) -> RunnerError | None:
    """Return the error for a path on a disk that is full or read-only, or None if it has room.

    The path need not exist yet.
    """
    real = Path(os.path.realpath(path))
    folder = existing_folder(real)
    mount = next(one for one in (real, *real.parents) if one == one.parent or one.is_mount())
    try:
        why = _explain_full_disk(folder)
    except OSError:
        return None  # the next write reports it
    return None if why is None else _disk_error(path, f"the disk mounted at {mount} {why}", mount)


def _explain_full_disk(folder: Path) -> str | None:
    if not hasattr(os, "statvfs"):  # Windows
        usage = shutil.disk_usage(folder)
        free, total, inodes, read_only = usage.free, usage.total, None, False
    else:
        found = os.statvfs(folder)
        privileged = os.geteuid() == 0  # root may use the reserved blocks
        free = (found.f_bfree if privileged else found.f_bavail) * found.f_frsize
        total, read_only = found.f_blocks * found.f_frsize, bool(found.f_flag & os.ST_RDONLY)
        left = found.f_ffree if privileged else found.f_favail
        inodes = left if found.f_files else None  # some file systems do not count them
    if read_only:
        return _READ_ONLY
    if total and free < _MIN_FREE_BYTES:
        return f"has {free:,} of {total:,} bytes free"
    if inodes is not None and inodes < _MIN_FREE_INODES:
        return f"has only {inodes} free inodes"
    return None


def _disk_error(path: Path, why: str, mount: Path) -> RunnerError:
    read_only = why.endswith(_READ_ONLY)
    make = f"mount {mount} writable" if read_only else f"free space on the disk of {mount}"
    return RunnerError(
        "R-DISK-FULL",
        f"cannot write to {path}",
        why=why,
        fix=f"{make}, or set RUNNER_HOME to a folder on another disk",
    )
