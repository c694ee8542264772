"""`batch-emulator export` and `batch-emulator import`, and what an emulator starts with."""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from batch_emulator.domain.account import Account
from batch_emulator.emulator import Emulator
from batch_emulator.http.routes import seeding
from batch_emulator.options import check_account
from batch_emulator.storage.account_store import (
    AccountStore,
    StoreFormatError,
    StoreInUseError,
    store_name,
    stored_name,
)
from batch_emulator.storage.exports import (
    ExportError,
    check_export,
    export_account,
    import_account,
    is_export,
    require_empty,
)

_COMMANDS = {
    "export": "write pools, jobs, job schedules, tasks, application packages and certificates to "
    "one file, whether an emulator runs on the folder or not",
    "import": "read such a file into an empty folder, on which no emulator runs",
}


def is_command(arguments: list[str]) -> bool:
    """Return True if the arguments are those of `export` or `import`."""
    return bool(arguments) and arguments[0] in _COMMANDS


def run_command(arguments: list[str]) -> str:
    """Export or import an account, and return what was done. Raises ExportError."""
    command = arguments[0]
    options = _parser(command).parse_args(arguments[1:])
    data_dir, file = options.data_dir.resolve(), options.file
    if command == "export":
        if file.resolve().is_relative_to(data_dir):  # it would replace the state
            why = f"{file} is in the folder of the emulator"
            raise ExportError("cannot export the account", why, "use a file in another folder")
        done = export_account(data_dir, file)
        return f"exported {done} to {file} ({file.stat().st_size / 1e6:.1f} MB); it has secrets"
    done = check_export(file)
    name = options.account or done.name
    if name:
        check_account(name)
    try:
        store = AccountStore(data_dir)
    except (StoreInUseError, StoreFormatError, sqlite3.Error, OSError) as err:
        fix = "use an empty --data-dir that can be written"
        if isinstance(err, StoreInUseError):
            fix = "stop it, use an empty --data-dir, or send the file to POST /_emulator/import"
        raise ExportError(f"cannot import into {data_dir}", str(err), fix) from err
    try:
        require_empty(_account_of(store))
        import_account(store, done)
        if name:
            store_name(data_dir, name)
    finally:
        store.close()
    return f"imported {replace(done, name=name)} into {data_dir}"


def _parser(command: str) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog=f"python -m batch_emulator {command}", description=_COMMANDS[command].capitalize()
    )
    top.add_argument("file", type=Path, metavar="FILE", help="the exported account")
    top.add_argument("--data-dir", type=Path, required=True, help="folder of the emulator")
    if command == "import":
        top.add_argument("--account", help="name of the account; default: the exported one")
    return top


def _account_of(store: AccountStore) -> Account:
    """Return an account with the ids in a store, which is enough to know whether it is empty."""
    account = Account(stored_name(store.folder) or store.folder.name)
    for table, kept in (
        ("pools", account.pools), ("jobs", account.jobs), ("schedules", account.schedules)
    ):  # fmt: skip
        kept.update(store.records(table))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return account


def check_start(file: Path) -> None:
    """Check that a seed file or an exported account can be read. Raises ExportError."""
    with _reading(file):
        if _is_export(file):
            check_export(file)
        else:
            seeding.parse(file.read_bytes())


def _is_export(file: Path) -> bool:
    return file.is_file() and is_export(file)  # a pipe can be read only once


@contextmanager
def _reading(file: Path) -> Generator[None]:
    what = f"cannot start with {file}"
    try:
        yield
    except OSError as err:
        raise ExportError(what, err.strerror or str(err), "use the path of a file") from err
    except seeding.SeedError as err:
        raise ExportError(what, err.why, f"{err.fix}; nothing was added") from err


def start_with(emulator: Emulator, file: Path, say: Callable[[str], object]) -> None:
    """Add what a seed file or an exported account contains, before the emulator serves.

    An account that is not empty keeps what it has: an emulator that is started again with the same
    file continues. Raises ExportError.
    """
    with _reading(file):
        if _is_export(file):
            account = emulator.account
            if account.pools or account.jobs or account.schedules:
                say(f"{file} was not imported: the account is not empty")
                return
            done = check_export(file)
            emulator.import_account(done)
            say(f"imported {done} from {file}")
            return
        seed = seeding.parse(file.read_bytes())
        planted = seeding.plant(emulator, seed, emulator.settings.url)
    emulator.store.write(emulator.account.take_journal())
    say(f"seeded from {file}: {planted}")
