"""Protect the node from the script: other runs' folders are hidden, shared ones are read-only.

The script runs in user and mount namespaces of its own. Their numbers are recorded, so that the
next agent finds processes that remained.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from runner.node.failures import COMMAND_STAGE, StageFailedError

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Set by the emulator: the folder of all its nodes, each in a folder of its pool.
NODES_VARIABLE = "BATCH_EMULATOR_NODES_DIR"

# From <sched.h> and <sys/mount.h> of Linux.
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE = 1, 32, 4096, 16384
_NO_PROGRAMS = 2 | 4  # nosuid, nodev
_KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime, as in statvfs
_RELATIVE_TIMES = 4096, 1 << 21  # its value in statvfs, and in mount
_NO_NEW_PRIVILEGES = 38


class _NoNamespacesError(OSError):
    """The kernel permits no namespaces, whatever the folders are."""


class _Kernel:
    """The calls of Linux with which a process changes what it sees. Each raises OSError.

    They run between `fork` and `exec`, so they import nothing.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def enter_namespaces(self, maps: Iterable[tuple[str, bytes]]) -> None:
        """Enter a user and a mount namespace. `maps` has the files of its users and groups."""
        self._call(self._libc.unshare, _NEW_USER | _NEW_MOUNTS)
        for name, text in maps:
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(descriptor, text)
            os.close(descriptor)
        self.bind(b"/proc", b"/proc")  # a mount that no script can make fail

    def bind(self, source: bytes, target: bytes) -> None:
        """Mount a folder, with all that is mounted in it, at another place too."""
        self._mount(source, target, None, _BIND | _RECURSIVE, None)

    def set_flags(self, path: bytes, flags: int) -> None:
        """Change the flags of a mount."""
        self._mount(None, path, None, _REMOUNT | _BIND | flags, None)

    def cover(self, folder: bytes, kept: Sequence[bytes]) -> None:
        """Mount a read-only folder over another one, with only the folders in `kept`."""
        descriptors = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in kept]
        self._mount(b"tmpfs", folder, b"tmpfs", _NO_PROGRAMS, b"mode=755,size=256k,nr_inodes=64")
        for path, descriptor in zip(kept, descriptors, strict=True):
            os.makedirs(path)  # noqa: PTH103 - bytes
            self.bind(b"/proc/self/fd/%d" % descriptor, path)
            os.close(descriptor)
        self.set_flags(folder, _NO_PROGRAMS | _READ_ONLY)

    def overlay(self, path: bytes, options: bytes) -> None:
        """Mount an overlay. Raise _NoNamespacesError where the kernel permits none."""
        try:
            self._mount(b"overlay", path, b"overlay", 0, options)
        except OSError as err:  # before Linux 5.11, or above another overlay
            raise _NoNamespacesError(err.errno, err.strerror) from err

    def give_up_privileges(self) -> None:
        """Prevent that a program gets more rights, for good."""
        self._call(self._libc.prctl, _NO_NEW_PRIVILEGES, 1, 0, 0, 0)

    def _mount(
        self, source: bytes | None, path: bytes, kind: bytes | None, flags: int, data: bytes | None
    ) -> None:
        self._call(self._libc.mount, source, path, kind, ctypes.c_ulong(flags), data)

    def _call(self, function: Callable[..., int], *arguments: object) -> None:
        if function(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel permits no namespaces")


def protect_folders(
    read_only: Iterable[Path],
    writable: Iterable[Path] = (),
    copies: Mapping[Path, Path] | None = None,
    hidden: Mapping[Path, Sequence[Path]] | None = None,
    record: Path | None = None,
) -> Callable[[], None] | None:
    """Return a function that a new child calls to make folders read-only for itself, for good.

    It runs in namespaces of its own, without rights to change the mounts, as do its children. They
    cannot read the memory or the environment of other processes of this user either. The function
    raises OSError if the kernel permits no such namespaces, and has changed nothing else then.

    Args:
        read_only: the folders.
        writable: folders in them that stay writable.
        copies: folders that the child sees with its own changes, which are written to an empty
            folder (the value) instead.
        hidden: folders of which the child sees only the folders in the value, outer ones first.
        record: a file to which the child appends the number of its user namespace.

    Returns:
        The function, or None for root, who could undo it, and without Linux.
    """
    uid, gid = os.geteuid(), os.getegid()
    if not sys.platform.startswith("linux") or uid == 0:
        return None
    mounts = [(path, _mount_flags(path) | _READ_ONLY) for path in read_only]
    mounts += [(path, _mount_flags(path)) for path in writable]
    mounts.sort(key=lambda mount: len(mount[0].parts))  # an outer mount would cover an inner one
    plan = [(os.fsencode(path), flags) for path, flags in mounts]
    covers = [
        (os.fsencode(path), [*map(os.fsencode, kept)]) for path, kept in (hidden or {}).items()
    ]
    overlays = [(os.fsencode(path), *_overlay(path, own)) for path, own in (copies or {}).items()]
    maps = (("setgroups", b"deny"), ("uid_map", b"%d %d 1" % (uid, uid)))
    maps += (("gid_map", b"%d %d 1" % (gid, gid)),)
    kernel = _Kernel()

    def protect() -> None:
        working_dir = os.getcwd()  # noqa: PTH109 - no imports
        try:
            kernel.enter_namespaces(maps)
        except OSError as err:
            raise _NoNamespacesError(err.errno, err.strerror) from err
        if record is not None:
            _add_namespace(record)
        for path, kept in covers:
            kernel.cover(path, kept)
        for path, flags in plan:
            kernel.bind(path, path)
            kernel.set_flags(path, flags)
        for path, options in overlays:
            kernel.overlay(path, options)
        os.chdir(working_dir)  # `..` would lead below the new mounts otherwise
        kernel.give_up_privileges()

    return protect


def protect_node(
    shared_dir: Path, writable: Iterable[Path] = (), copies: Mapping[Path, Path] | None = None
) -> Callable[[], None] | None:
    """Return `protect_folders` for what other runs of this node execute, read or write.

    Read-only are the agent's folders in `shared_dir`, its cache, which may be a link to another
    place, the Python of the agent, and the folder of the node, except those for all tasks. Hidden
    are the folders of other tasks, and of the other nodes of this machine.
    """
    _load_gpu_memory_module()
    runner = shared_dir / "runner"
    places = [runner, runner / "cache"]
    if sys.prefix != sys.base_prefix:
        places.append(Path(sys.prefix))
    if start := os.environ.get("AZ_BATCH_NODE_STARTUP_DIR"):
        places.append(Path(start))
    found: list[Path] = []
    for place in (Path(os.path.realpath(path)) for path in places):
        if place.is_dir() and not any(place.is_relative_to(each) for each in found):
            found.append(place)
    own = [Path(os.path.realpath(path)) for path in writable]
    node, open_folders, hidden = _own_folders(os.environ)
    record = namespaces_file(os.environ)
    if record is not None:
        record.parent.mkdir(parents=True, exist_ok=True)
    opened = [path for path in (*open_folders, *own) if path.is_dir()]
    return protect_folders([*node, *found], opened, copies, hidden, record)


_GPU_DRIVER = Path("/proc/driver/nvidia")
_GPU_MEMORY = Path("/dev/nvidia-uvm")
_GPU_TIMEOUT_S = 60.0


def _load_gpu_memory_module() -> None:
    """Load the module that CUDA needs, which is missing until the first use of a GPU.

    CUDA loads it with the program `nvidia-modprobe`, which belongs to root and runs with its
    rights. In the namespace of a script, no program does.
    """
    if _GPU_DRIVER.exists() and not _GPU_MEMORY.exists():
        with suppress(OSError, subprocess.TimeoutExpired):  # CUDA reports a missing module
            subprocess.run(
                ["nvidia-modprobe", "-u", "-c", "0"],
                capture_output=True,
                timeout=_GPU_TIMEOUT_S,
                check=False,
            )


_NAMESPACES = Path("runner", "namespaces")  # in a shared folder: a file for each task
_PARENT_NAMESPACE = 0xB702  # NS_GET_PARENT of <linux/nsfs.h>


def namespaces_file(environment: Mapping[str, str]) -> Path | None:
    """Return the file with the user namespaces of a task's scripts, which no script can write."""
    shared = environment.get("AZ_BATCH_NODE_SHARED_DIR")
    task = environment.get("AZ_BATCH_TASK_DIR")
    if not shared or not task:
        return None
    return Path(shared) / _NAMESPACES / hashlib.sha256(os.fsencode(task)).hexdigest()[:32]


def _add_namespace(record: Path) -> None:
    number = os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116 - no imports
    descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b"%d\n" % number)
    os.close(descriptor)


def recorded_namespaces(environment: Mapping[str, str]) -> frozenset[int]:
    """Return the namespaces of this task's scripts, without those whose number was reused."""
    record = namespaces_file(environment)
    if record is None or not record.is_file():
        return frozenset()
    since_ns, found = record.stat().st_mtime_ns, _numbers(record)
    others = [*record.parent.glob("*")]
    if nodes := environment.get(NODES_VARIABLE):
        others += Path(nodes).glob(f"*/*/tasks/shared/{_NAMESPACES}/*")
    for other in others:
        with suppress(OSError):  # removed by its task
            if other.stat().st_mtime_ns > since_ns and not other.samefile(record):
                found -= _numbers(other)
    return frozenset(found)


def forget_namespaces(environment: Mapping[str, str]) -> None:
    """Remove the record of this task, none of whose processes is left.

    The kernel gives the numbers to other scripts, which the next attempt here must not kill.
    """
    if record := namespaces_file(environment):
        with suppress(OSError):
            record.unlink(missing_ok=True)


def _numbers(record: Path) -> set[int]:
    return {int(line) for line in record.read_bytes().split() if line.isdigit()}


def namespace_of_script(pid: int) -> int | None:
    """Return the user namespace of a process that is a child of ours, or the ancestor that is."""
    with ExitStack() as stack, suppress(OSError):  # it ended, or belongs to another user
        own = os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116 - faster
        space = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        stack.callback(os.close, space)
        while (number := os.fstat(space).st_ino) != own:
            space = fcntl.ioctl(space, _PARENT_NAMESPACE)
            stack.callback(os.close, space)
            if os.fstat(space).st_ino == own:
                return number
    return None


_OWN_TASK = ("AZ_BATCH_TASK_DIR", "AZ_BATCH_TASK_SHARED_DIR", "AZ_BATCH_JOB_PREP_DIR")


def _own_folders(
    environment: Mapping[str, str],
) -> tuple[list[Path], list[Path], dict[Path, list[Path]]]:
    """Return folders of the node: its own, those in it that tasks write to, and what to hide."""
    given = environment.get("AZ_BATCH_NODE_ROOT_DIR")
    root = Path(os.path.realpath(given or "/"))
    workitems, hidden = root / "workitems", dict[Path, list[Path]]()
    values = [environment[name] for name in _OWN_TASK if environment.get(name)]
    tasks = [Path(os.path.realpath(value)) for value in values]
    tasks = [path for path in tasks if path.is_dir() and path.is_relative_to(workitems)]
    if not given or not tasks:
        return [], [], {}
    node = root
    if nodes := environment.get(NODES_VARIABLE):
        node = root.parent
        hidden[Path(os.path.realpath(nodes))] = [node]
    outer = [path for path in tasks if not any(each in path.parents for each in tasks)]
    hidden[workitems] = [*dict.fromkeys(outer)]
    shared = [root / name for name in ("shared", "volatile", "fsmounts")]
    return [node], [*shared, *hidden[workitems]], hidden


def _mount_flags(path: Path) -> int:
    """Return the flags of the mount of a folder, which a remount has to repeat, as mount's."""
    given = os.statvfs(path).f_flag
    return given & _KEPT_FLAGS | (_RELATIVE_TIMES[1] if given & _RELATIVE_TIMES[0] else 0)


def _overlay(path: Path, own: Path) -> tuple[bytes]:
    for name in ("upper", "work"):
        (own / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={path},upperdir={own / 'upper'},workdir={own / 'work'},userxattr"
    return (os.fsencode(options),)


# What the kernel answers where it permits no such namespaces to anybody.
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
_MAX_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


def start_protected(
    start: Callable[[Callable[[], None] | None], T], protect: Callable[[], None] | None
) -> T:
    """Call `start` with `protect`, or with None if the kernel of this node does not permit it.

    On nodes of the emulator, which keep runs apart, another failure does not start the process: a
    script could have caused it. On other nodes, whose runs have one identity, it is a warning.

    Raises:
        StageFailedError: the process cannot be protected now.
    """
    if protect is None:
        return start(None)
    receiver, sender = os.pipe()

    def report() -> None:
        try:
            protect()
        except OSError as err:
            os.write(sender, bytes((err.errno or 0, isinstance(err, _NoNamespacesError))))
            raise

    try:
        os.set_blocking(receiver, False)
        return start(report)
    except subprocess.SubprocessError as err:  # how an exception of the child arrives
        number, never = 0, False
        with suppress(BlockingIOError):
            number, never = os.read(receiver, 2)
        disabled = number == errno.ENOSPC and _MAX_NAMESPACES.read_text("ascii").strip() == "0"
        never = never and (number in _FORBIDDEN or disabled)
        if not never and NODES_VARIABLE in os.environ:
            message = f"cannot start the script with a read-only node: {os.strerror(number)}"
            raise StageFailedError(COMMAND_STAGE, "AgentFailed", message) from err
    finally:
        os.close(receiver)
        os.close(sender)
    why = "the kernel permits no namespaces" if never else os.strerror(number)
    logger.warning("the folders of the node are not read-only: %s", why)
    return start(None)
