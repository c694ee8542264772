"""`python -m batch_emulator`: check the options, set up the log, and serve on a loopback
address.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shlex
import sqlite3
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import uvicorn

from batch_emulator.domain.account import LOG_FIELDS
from batch_emulator.emulator import Emulator, EmulatorSettings
from batch_emulator.executor.isolation import IsolationError, choose_isolation
from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.folders import shortage
from batch_emulator.http.app import App
from batch_emulator.launches import NodeNames
from batch_emulator.options import OptionError, check_host, parser, settings_of
from batch_emulator.proxies import exclude_loopback
from batch_emulator.server import bind, url_of, uvicorn_config, with_files, with_page
from batch_emulator.storage.account_store import StoreFormatError, StoreInUseError

_LOG_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, fields of the record, trace of an
    exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, LOG_FIELDS, {}),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False, default=str)


def set_up_logs(form: str, level: str) -> None:
    """Send the log to stderr as `text` or `json`, from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_LOG_LINE))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore", "asyncio"):  # they log URLs with their SAS, or every select
        logging.getLogger(noisy).setLevel(logging.WARNING)


_USAGE_ERROR = 2
_START_ERROR = 1
_STATE_FORMAT = "state-format"  # a program that starts the emulator can offer to delete the state
_LOOK_FOR_FOLDER_S = 1.0


def _say(text: str, code: int = 0) -> int:
    stream = sys.stderr if code else sys.stdout
    stream.write(text + "\n")
    stream.flush()
    return code


def _node_names(settings: EmulatorSettings, files_url: str) -> NodeNames:
    """Serve Azure's host names for tasks, as long as this process lives."""
    from batch_emulator.gateway.client_variables import (  # noqa: PLC0415  needs cryptography
        bundle_of,
        client_variables,
    )
    from batch_emulator.gateway.proxy import Gateway  # noqa: PLC0415
    from batch_emulator.gateway.services import LocalServices  # noqa: PLC0415
    from batch_emulator.gateway.sign_in import NamedAccounts  # noqa: PLC0415

    storage = settings.storage or StorageAccount(settings.account, "")
    accounts = NamedAccounts(settings.account, settings.key, storage.key, storage.seed)
    urls = (settings.url, settings.blob_endpoint or "", f"{files_url}/{settings.account}")
    gateway = Gateway(LocalServices(accounts, *urls), for_nodes=True)
    gateway.start()
    return NodeNames(partial(client_variables, gateway), bundle_of(gateway))


def _stop_when_deleted(folder: Path, server: uvicorn.Server) -> None:
    """Stop the server, in a thread, once its folder is deleted: nobody else would stop it.

    A deleted folder has no links, even if there is a new one at the same path.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(descriptor).st_nlink == 0:
        return  # this file system does not count links

    def watch() -> None:
        while os.fstat(descriptor).st_nlink:
            time.sleep(_LOOK_FOR_FOLDER_S)
        logging.getLogger("batch_emulator").error("%s was deleted", folder)
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str] | None = None) -> int:
    """Run the server and return the exit code: 0, 1 (it cannot start) or 2 (usage)."""
    options = parser().parse_args(arguments)
    os.environ.update(exclude_loopback(os.environ))
    set_up_logs(options.log_format, options.log_level)
    try:
        check_host(options.host)
        settings_of(options, "")
        listeners = [bind(options.host, options.port)]
        if options.storage_account:
            listeners.append(bind(options.host, options.files_port))
        if options.ui:
            listeners.append(bind(options.host, options.ui_port))
    except OptionError as err:
        return _say(str(err), _USAGE_ERROR)
    except OSError as err:
        return _say(
            f"error: cannot listen on {options.host}:{_ports(options)}: {err}", _START_ERROR
        )
    settings = settings_of(options, url_of(listeners[0]))
    if (why := shortage(settings.data_dir)) is not None:
        fix = "free some space, or use a --data-dir on another disk"
        return _say(
            f"error: cannot use {settings.data_dir}\n  why: {why}\n  fix: {fix}", _START_ERROR
        )
    if options.azure_names:
        settings = replace(settings, names=_node_names(settings, url_of(listeners[1])))
    try:
        isolation = choose_isolation(settings.isolation, settings.data_dir)
        if isolation.owner is not None:  # with a umask of 077, tasks could not enter its folders
            os.umask(0o022)
        emulator = Emulator(settings, isolation=isolation)
    except (StoreInUseError, StoreFormatError, sqlite3.Error, OSError) as err:
        return _say(_cannot_use(settings.data_dir, err), _START_ERROR)
    except IsolationError as err:
        fix = "use --isolation environment"
        return _say(f"error: cannot isolate tasks\n  why: {err}\n  fix: {fix}", _START_ERROR)
    _say(f"listening on {settings.url} account {settings.account}")
    if settings.storage is not None:
        _say(f"files on {url_of(listeners[1])}/{settings.storage.name}")
    api = App(emulator)
    app = with_files(api, emulator, listeners[1:])
    if options.ui:
        app = with_page(api, app, emulator, listeners[-1], lambda link: _say(f"page on {link}"))
    server = uvicorn.Server(uvicorn_config(app))
    _stop_when_deleted(settings.data_dir, server)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
        server.run(sockets=listeners)
    return 0


def _ports(options: argparse.Namespace) -> str:
    ports = [options.port]
    ports += [options.files_port] if options.storage_account else []
    ports += [options.ui_port] if options.ui else []
    return " and ".join(map(str, ports))


def _cannot_use(data_dir: Path, err: Exception) -> str:
    if not isinstance(err, StoreFormatError):
        return f"error: cannot use {data_dir}: {err}"
    state = shlex.quote(str(data_dir / "state.sqlite"))
    fix = f"run the version that wrote it, or delete all pools, jobs and tasks: rm {state}*"
    return f"error: cannot use {data_dir}\n  why: {err}\n  fix: {fix}\n  code: {_STATE_FORMAT}"


if __name__ == "__main__":
    sys.exit(main())
