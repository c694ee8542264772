"""Delete files that the local services no longer need, and list what a reset keeps."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.jobs import (
    delete_task_folder,
    list_task_files,
    list_tasks,
    unfinished_tasks,
)
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.file_lock import file_lock
from runner.core.home import HomePaths, disk_reserve, existing_folder
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.core.units import format_count
from runner.flows.local import azurite, task_folders
from runner.flows.local.state import is_reachable
from runner.flows.local.task_folders import CLAIM, find_claims, folders_outside
from runner.flows.runs.documents import load_result, runs_container
from runner.flows.runs.history import list_runs
from runner.protocol.errors import RunnerError
from runner.protocol.host import remove_tree
from runner.protocol.run_spec import RunSpec

_WORK = "wd"  # the working directory of a task, below its folder
_CACHES = ("uv", "python", "envs", "jax")  # below the cache of nodes
_ABANDONED_S = 86_400.0  # age from which an incomplete installation must have been killed
_LOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class PrunableItem:
    """A file or folder that can be deleted; `size_bytes` is the disk space that this frees."""

    what: str
    path: str
    size_bytes: int
    delete: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The items to delete, and notes on what is kept."""

    items: tuple[PrunableItem, ...]
    notes: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The disk space that deleting all items frees."""
        return sum(item.size_bytes for item in self.items)


def plan_prune(settings: Settings, *, everything: bool) -> PrunePlan:
    """Return the items to delete; `everything` includes items that are downloaded when needed."""
    paths, items, notes = HomePaths(settings.home), list[PrunableItem](), list[str]()
    active = False
    if is_reachable(settings):
        connection = connect(settings)
        active = bool(unfinished_tasks(connection, 1))
        items += _work_folders(connection, notes)
    elif paths.local_state.exists():
        notes.append(
            "folders of tasks are kept while the services are stopped; start them: runner local up"
        )
    items += _folders(
        "another version of Azurite", _unused_versions(paths.azurite(azurite.VERSION))
    )
    items += _folders(
        "another version of Node.js", _unused_versions(paths.node(azurite.WHEEL_VERSION))
    )
    items += _folders("an old log", sorted(paths.logs.glob("*.old.log")))
    items += _abandoned(notes)
    if everything and active:
        notes.append("packages are kept while tasks run; to list them: runner ps --status running")
    elif everything:
        items += _folders("packages", _package_caches(paths))
    if everything:
        items += _folders("a data set", sorted(paths.data("x").parent.glob("*")))
    return PrunePlan(tuple(items), tuple(notes))


def prune(settings: Settings, plan: PrunePlan, on_progress: OnProgress) -> None:
    """Delete the items of a plan; missing items are ignored."""
    on_progress(Progress("prune", "start", f"deleting {format_count(len(plan.items), 'item')}"))
    paths, what = HomePaths(settings.home), "changing the local services"
    locked = file_lock(paths.local_lock, what=what, timeout_s=_LOCK_TIMEOUT_S)
    with disk_reserve(paths), locked:
        for number, item in enumerate(plan.items, 1):
            item.delete()
            step = Progress("prune", "progress", "", number, len(plan.items), "items")
            on_progress(step)
    on_progress(Progress("prune", "end", format_count(len(plan.items), "item")))


def _work_folders(connection: Connection, notes: list[str]) -> Iterator[PrunableItem]:
    """Yield the working directories of the tasks of runs that have ended.

    Directories with files that the run did not keep in blob storage become a note instead.
    """
    rows = list_runs(connection, limit=None).rows
    ended = [row.spec for row in rows if row.spec is not None and row.result is not None]
    jobs = list({spec.job_id for spec in ended})
    tasks = dict(zip(jobs, in_parallel(lambda job: list_tasks(connection, job), jobs), strict=True))
    over = {
        # Of several trials in one task, the folder has the files of the last one.
        (spec.job_id, spec.task_id): spec
        for spec in sorted(ended, key=lambda each: each.run_id)
        if (task := tasks[spec.job_id].get(spec.task_id)) and task.phase == "completed"
    }.values()
    sizes = in_parallel(lambda run: _work_bytes(connection, run), over)
    full = [(run, size) for run, size in zip(over, sizes, strict=True) if size]
    container = runs_container(connection)
    reasons = in_parallel(lambda each: _kept_reason(container, each[0].run_id), full)
    for (run, size_bytes), why in zip(full, reasons, strict=True):
        if why:
            notes.append(f"kept the folder of {run.run_id}: {why}")
            continue
        delete = partial(delete_task_folder, connection, run.job_id, run.task_id, _WORK)
        where = f"task {run.task_id} of job {run.job_id}"
        yield PrunableItem("task folder", where, size_bytes, delete)


def _work_bytes(connection: Connection, run: RunSpec) -> int:
    return sum(
        file.size_bytes for file in list_task_files(connection, run.job_id, run.task_id, _WORK)
    )


def _kept_reason(container: BlobContainer, run_id: str) -> str:
    """Return why the folder of a run's task is kept, or an empty string."""
    try:
        result = load_result(container, run_id)
    except RunnerError:
        return "its result cannot be read"
    if result is None or not (left_out := result.left_out):
        return ""
    more = len(left_out) - 1
    several = more or left_out[0].files > 1 or left_out[0].why == "search"
    return (
        f"{left_out[0].path}{f' and {more} more' if more else ''} "
        f"{'are' if several else 'is'} only there"
    )


def _unused_versions(used: Path) -> Iterator[Path]:
    """Yield the versions that are neither in use nor being installed."""
    if used.parent.is_symlink() or not used.parent.is_dir():
        return
    for folder in sorted(used.parent.iterdir()):
        fresh = time.time() - folder.stat().st_mtime < _ABANDONED_S
        if folder != used and folder.is_dir() and not (folder.name.startswith(".new-") and fresh):
            yield folder


def _package_caches(paths: HomePaths) -> Iterator[Path]:
    """Yield the caches of packages and compiled programs.

    Their parent folders are kept, because running nodes link to them.
    """
    places = [paths.cache, *paths.cache.glob("user*")]
    places += [folder / "cache" for folder in folders_outside(paths)]
    for place in places:
        if not paths.cache.is_symlink():  # a link points to the cache of another home
            yield from (place / name for name in _CACHES if (place / name).is_dir())


def _abandoned(notes: list[str]) -> Iterator[PrunableItem]:
    """Yield the folders in OUTSIDE whose home, or whose data dir without a home, is gone."""
    unknown = 0
    for folder, data in find_claims():
        if data is None:
            unknown += 1
        elif _is_gone(data) and not _has_mounts(folder):
            what = f"nodes and packages of {_home_of(data)}, which is gone"
            yield PrunableItem(what, str(folder), _freed_bytes(folder), partial(_abandon, folder))
    if unknown:
        notes.append(
            f"{format_count(unknown, 'folder')} of an earlier version in {task_folders.OUTSIDE} "
            "name no home; delete them if no other emulator uses them"
        )


def _home_of(data: Path) -> Path:
    """Return the home of a data dir, or the data dir of an emulator that has none."""
    return data.parents[1] if data.parts[-2:] == ("local", "batch") else data


def _is_gone(data: Path) -> bool:
    """Return True if the home is gone. In an empty folder, its disk may not be mounted."""
    home = _home_of(data)
    there = existing_folder(home)
    return there != home and any(there.iterdir())


def _has_mounts(folder: Path) -> bool:
    import psutil  # noqa: PLC0415  few commands need it

    mounts = (Path(each.mountpoint) for each in psutil.disk_partitions(all=True))
    return any(mount.is_relative_to(folder) for mount in mounts)


def _abandon(folder: Path) -> None:
    """Remove a folder in OUTSIDE, unless its emulator has been started since it was listed."""
    import fcntl  # noqa: PLC0415  not on Windows

    with suppress(OSError), (folder / CLAIM).open("rb") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_gone(Path(os.fsdecode(claim.read()))) or _has_mounts(folder):
            return
        removed = folder.with_name(f".{folder.name.lstrip('.')}.removed-{os.getpid()}")
        folder.rename(removed)  # an emulator that starts now makes a new one
        # The record is deleted last: if this process is killed, the rest is found again.
        for path in sorted(removed.iterdir(), key=lambda each: each.name == CLAIM):
            _delete(path)
        removed.rmdir()


def _folders(what: str, paths: Iterable[Path]) -> Iterator[PrunableItem]:
    for path in paths:
        yield PrunableItem(what, str(path), _freed_bytes(path), partial(_delete, path))


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _freed_bytes(path: Path) -> int:
    """Return the bytes that deleting a folder frees: files without hard links outside it."""
    names: Counter[tuple[int, int]] = Counter()
    found: dict[tuple[int, int], os.stat_result] = {}
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                stat = os.lstat(os.path.join(folder, name))  # noqa: PTH118  ten times as fast
            except OSError:  # deleted in the meantime
                continue
            key = stat.st_dev, stat.st_ino
            names[key] += 1
            found[key] = stat
    if path.is_file():
        return path.stat().st_size
    return sum(stat.st_size for key, stat in found.items() if names[key] >= stat.st_nlink)


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A folder that a reset keeps."""

    what: str
    path: Path
    size_bytes: int


def kept_by_reset(paths: HomePaths) -> tuple[KeptFolder, ...]:
    """Return what a reset keeps, with sizes: it is downloaded again if it is deleted."""
    wanted = [
        ("packages", paths.cache),
        *(("packages", one) for one in folders_outside(paths) if (one / "cache").is_dir()),
        ("data sets", paths.data("x").parent),
        ("Azurite", paths.azurite(azurite.VERSION).parent),
        ("Node.js", paths.node(azurite.WHEEL_VERSION).parent),
    ]
    found = (KeptFolder(what, path, _freed_bytes(path)) for what, path in wanted)
    return tuple(each for each in found if each.size_bytes)
