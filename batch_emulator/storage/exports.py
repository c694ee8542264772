"""An account as one file: how it is written, and checked before it is imported.

The file is an SQLite database with the tables of the state. Nodes and files of tasks stay behind
[S]: they are folders, processes and addresses of one machine, so an imported pool gets new nodes,
and tasks that ran run again. Packages of applications and certificates are included, because pools
name them. Shares, blobs and the account key are not part of the account's state.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from batch_emulator import __version__
from batch_emulator.domain.account import Account
from batch_emulator.domain.faults import StatedError
from batch_emulator.folders import shortage
from batch_emulator.storage import restart
from batch_emulator.storage.account_store import (
    ENDPOINT_FILE,
    FORMAT,
    SCHEMA,
    AccountStore,
    stored_name,
)
from batch_emulator.storage.state_reader import StateReader

_APPLICATION_ID = 0x42454D41  # marks the file, at offset 68 of every SQLite database
_CHUNK = 8 << 20  # bytes of a file in one row; SQLite takes at most 1 GB
_TABLES = [
    " ".join(statement.replace("IF NOT EXISTS ", "").split())
    for statement in (
        *SCHEMA.split(";"),
        "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)",
        "CREATE TABLE files (path TEXT, part INTEGER, content BLOB, PRIMARY KEY (path, part))",
    )
    if "CREATE TABLE" in statement
]
# Without nodes, a pool is resized to its targets when it is imported.
_ROWS = {
    "pools": "SELECT pool, json_set(record, '$.allocation', 'resizing', '$.resize_deadline', NULL,"
    " '$.resize_errors', json('[]')) FROM state.pools",
    "jobs": "SELECT job, record FROM state.jobs",
    "tasks": "SELECT job, task, id, ord, slots, state, result, record, body, NULL"
    " FROM state.tasks WHERE job IN (SELECT job FROM state.jobs)",
    "samples": "SELECT * FROM state.samples",
    "schedules": "SELECT * FROM state.schedules",
    "usage": "SELECT * FROM state.usage",
}
_NAME = "account"  # in the table `about`
CERTIFICATES = "certificates.json"
APPLICATIONS = "applications"
_FILE = re.compile(
    rf"{re.escape(CERTIFICATES)}|{APPLICATIONS}/(?!\.)[a-z0-9_.-]+/(application\.json|v-[a-z0-9_.-]+\.zip)"
)


class ExportError(StatedError):
    """A file or an account that cannot be exported or imported."""


@dataclass(frozen=True, slots=True)
class ExportedAccount:
    """An exported account that was written or checked; `name` may be unknown."""

    path: Path
    name: str
    pools: int
    jobs: int
    tasks: int

    def __str__(self) -> str:
        """Return its content in words."""
        counts = (("pool", self.pools), ("job", self.jobs), ("task", self.tasks))
        found = ", ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for word, n in counts)
        return f"{found} of account {self.name}" if self.name else found


def export_account(data_dir: Path, target: Path) -> ExportedAccount:
    """Write the account of a data dir to a file, whether an emulator runs on it or not.

    The file has the last committed state, replaces an older file when it is complete, and can be
    read by this user only: it contains secrets of pools and tasks. Raises ExportError.
    """
    what = f"cannot export the account of {data_dir}"
    state = data_dir / "state.sqlite"
    if not state.is_file():
        raise ExportError(what, f"{state} does not exist", "use the --data-dir of an emulator")
    try:
        if target.exists() and not target.is_file():  # a folder, or a device that would be replaced
            raise ExportError(what, f"{target} is not a regular file", "use the path of a file")
        if not target.parent.exists():
            fix = f"mkdir -p {shlex.quote(str(target.parent))}"
            raise ExportError(what, f"the folder {target.parent} does not exist", fix)
        with _replaced(target, what) as part:
            return _write(state, part, target, what)
    except (OSError, sqlite3.Error) as err:
        short = shortage(target.parent)
        why = f"{target} cannot be written: {short or err}"
        fix = "free some space, or use another file" if short else "use another file"
        fix += "; an older file is unchanged"
        raise ExportError(what, why, fix) from err


@contextmanager
def _replaced(target: Path, what: str) -> Generator[Path]:
    """Yield a new empty file beside the target, which then replaces it. Raises OSError.

    A killed process leaves the new file, and the next export to the same target overwrites it.
    """
    part = target.with_name(f".{target.name}.part")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if part.stat().st_ino != os.fstat(descriptor).st_ino:  # it has replaced the target
            raise BlockingIOError
    except OSError:
        os.close(descriptor)
        fix = "wait until it ends, or use another file"
        raise ExportError(what, f"another export writes {target}", fix) from None
    try:
        os.truncate(descriptor, 0)
        yield part
        os.fsync(descriptor)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(state: Path, part: Path, target: Path, what: str) -> ExportedAccount:
    with closing(sqlite3.connect(part, isolation_level=None, uri=True)) as database:
        run = database.execute
        run("PRAGMA journal_mode=OFF")
        run("PRAGMA synchronous=OFF")
        run("ATTACH ? AS state", (f"file:{quote(str(state))}?mode=ro",))
        [found] = run("PRAGMA state.user_version").fetchone()
        if found != FORMAT:
            fix = "export with the version that wrote it"
            raise ExportError(what, f"its state has format {found}, not {FORMAT}", fix)
        run("BEGIN")
        for table in _TABLES:
            run(table)
        for table, rows in _ROWS.items():
            run(f"INSERT INTO {table} {rows}")
        endpoint = state.with_name(ENDPOINT_FILE)
        about = {"version": __version__, "exported": datetime.now(UTC).isoformat("T", "seconds")}
        if endpoint.is_file():
            about[ENDPOINT_FILE] = endpoint.read_text("utf-8")
        if name := stored_name(state.parent):
            about[_NAME] = name
        database.executemany("INSERT INTO about VALUES (?,?)", about.items())
        database.executemany("INSERT INTO files VALUES (?,?,?)", _files_of(state.parent))
        run(f"PRAGMA user_version={FORMAT}")
        run(f"PRAGMA application_id={_APPLICATION_ID}")
        run("COMMIT")
        return _counted(database, target)


def _files_of(data_dir: Path) -> Iterator[tuple[str, int, bytes]]:
    """Yield path, number and bytes of each part of the packages and certificates."""
    for path in (data_dir / CERTIFICATES, *sorted(data_dir.glob(f"{APPLICATIONS}/*/*"))):
        name = path.relative_to(data_dir).as_posix()
        if not _FILE.fullmatch(name) or not path.is_file():
            continue
        with path.open("rb") as file:
            number = 0
            while (content := file.read(_CHUNK)) or not number:
                yield name, number, content
                number += 1


def _counted(database: sqlite3.Connection, path: Path) -> ExportedAccount:
    tables = ("pools", "jobs", "tasks")
    counts = (database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables)  # noqa: S608 - constants
    [name] = database.execute("SELECT value FROM about WHERE name=?", (_NAME,)).fetchone() or ("",)
    return ExportedAccount(path, name, *counts)


def is_export(path: Path) -> bool:
    """Return True if a file is an exported account, of whatever version. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(72)
    return head[:16] == b"SQLite format 3\0" and head[68:] == _APPLICATION_ID.to_bytes(4, "big")


def check_export(path: Path) -> ExportedAccount:
    """Return the content of a file that can be imported. Raises ExportError.

    The file may be damaged or made by somebody else: only tables of this schema are accepted, and
    everything is loaded once.
    """
    what = f"cannot import {path}"
    again = "export the account again with `batch-emulator export`"
    try:
        if not is_export(path):
            raise ExportError(what, "it is not an exported account", again)
        name = f"file:{quote(str(path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(name, isolation_level=None, uri=True)) as database:
            _check_format(database, what)
            [problem] = database.execute("PRAGMA quick_check(1)").fetchone()
            tables = {" ".join(sql.split()) for (sql,) in _all_sql(database)}
            if problem != "ok" or tables != set(_TABLES):
                raise ExportError(what, "it is damaged", again)
            for (each,) in database.execute("SELECT DISTINCT path FROM files"):
                if not _FILE.fullmatch(each):
                    raise ExportError(what, f"it contains a file '{each}'", again)
            with restart.without_collection():
                restart.load(Account("check"), StateReader(database), datetime.now(UTC))
            return _counted(database, path)
    except OSError as err:
        raise ExportError(what, str(err), "use the path of an exported account") from err
    except (sqlite3.Error, LookupError, TypeError, ValueError, AttributeError) as err:
        raise ExportError(what, f"it is damaged ({err})", again) from err


def _check_format(database: sqlite3.Connection, what: str) -> None:
    [found] = database.execute("PRAGMA user_version").fetchone()
    if found == FORMAT:
        return
    with suppress(sqlite3.Error):
        query = "SELECT value FROM about WHERE name='version'"
        [version] = database.execute(query).fetchone() or ("unknown",)
        newer = found > FORMAT
        why = f"a{' newer' if newer else 'n older'} emulator ({version}) wrote it: "
        why += f"its format is {found}, this one reads {FORMAT}"
        raise ExportError(what, why, f"use batch-emulator of version {version}")
    raise ExportError(what, "it is damaged", "export the account again")


def _all_sql(database: sqlite3.Connection) -> Iterator[tuple[str]]:
    return iter(database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())


def require_empty(account: Account) -> None:
    """Refuse to import into an account that has something. Raises ExportError."""
    running = sum(1 for each in account.executions.values() if each.task is not None)
    found = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in (
            (len(account.pools), "pool"),
            (len(account.jobs), "job"),
            (len(account.schedules), "job schedule"),
            (running, "running task"),
        )
        if count
    ]
    if found:
        why = f"account {account.name} is not empty: it has {', '.join(found)}"
        fix = "use an empty --data-dir, or send POST /_emulator/reset to the emulator first"
        raise ExportError("cannot import an account", why, fix)


def import_account(store: AccountStore, exported: ExportedAccount) -> None:
    """Store a checked account in an empty data dir: all of it or, after a crash, none.

    Packages and certificates come first; without a pool they have no effect. Raises ExportError.
    """
    try:
        with closing(sqlite3.connect(exported.path)) as database:
            for (name,) in database.execute("SELECT DISTINCT path FROM files ORDER BY path DESC"):
                _write_file(database, name, store.folder)
            query = "SELECT value FROM about WHERE name=?"
            found = database.execute(query, (ENDPOINT_FILE,)).fetchone()
        if found is not None:  # the next start replaces it by that of the blob service here
            (store.folder / ENDPOINT_FILE).write_text(found[0], "utf-8")
        store.take(exported.path)
    except (OSError, sqlite3.Error) as err:
        short = shortage(store.folder)
        why, fix = short or str(err), "free some space" if short else "export the account again"
        fix += ", and import again; nothing was imported"
        raise ExportError(f"cannot import {exported.path}", why, fix) from err


def _write_file(database: sqlite3.Connection, name: str, folder: Path) -> None:
    target = folder / name
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.new")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        query = "SELECT content FROM files WHERE path=? ORDER BY part"
        for (content,) in database.execute(query, (name,)):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)
