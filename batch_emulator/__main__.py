"""`python -m batch_emulator`: check the options, set up the log, and serve.

Only `--expose` serves on an address that other machines reach.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shlex
import socket
import sqlite3
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import uvicorn

from batch_emulator.account_files import check_start, is_command, run_command, start_with
from batch_emulator.domain.account import LOG_FIELDS
from batch_emulator.domain.faults import StatedError
from batch_emulator.emulator import Emulator, EmulatorSettings
from batch_emulator.executor.isolation import IsolationError, choose_isolation
from batch_emulator.executor.node_images import NodeImages
from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.folders import shortage
from batch_emulator.http.app import App
from batch_emulator.launches import NodeNames
from batch_emulator.options import parser, settings_of
from batch_emulator.proxies import exclude_loopback
from batch_emulator.server import ReadyServer, bind, url_of, uvicorn_config, with_files, with_page
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
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _say(run_command(arguments)) if is_command(arguments) else _serve(arguments)
    except StatedError as err:
        return _say(err.text, _START_ERROR)


def _serve(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    os.environ.update(exclude_loopback(os.environ))
    set_up_logs(options.log_format, options.log_level)
    try:
        checked = settings_of(options, "")
        if options.check:
            NodeImages(checked.images)
            if options.seed_file is not None:
                check_start(options.seed_file)
            return _say("the options are valid")
    except StatedError as err:
        return _say(err.text, _USAGE_ERROR)
    ports = [options.port]
    ports += [options.files_port] if options.storage_account else []
    ports += [options.ui_port] if options.ui else []
    listeners = [_listener(options.host, port) for port in ports]
    settings = settings_of(options, url_of(listeners[0]))
    if settings.storage is not None:
        files_url = f"{url_of(listeners[1])}/{settings.storage.name}"
        settings = replace(settings, files_url=files_url)
    if (why := shortage(settings.data_dir)) is not None:
        fix = "free some space, or use a --data-dir on another disk"
        raise StatedError(f"cannot use {settings.data_dir}", why, fix)
    if options.azure_names:
        settings = replace(settings, names=_node_names(settings, url_of(listeners[1])))
    emulator = _open(settings)
    if options.seed_file is not None:
        start_with(emulator, options.seed_file, _say)
    if settings.exposed:
        ports = " or ".join(str(each.getsockname()[1]) for each in listeners)
        logging.getLogger("batch_emulator").warning(
            "--expose: whoever reaches port %s of %s and has the key can run commands here; "
            "requests and answers are not encrypted", ports, options.host,
        )  # fmt: skip
    _say(f"listening on {settings.url} account {settings.account}")
    if settings.storage is not None:
        _say(f"files on {settings.files_url}")
    api = App(emulator)
    app = with_files(api, emulator, listeners[1:])
    if options.ui:
        app = with_page(api, app, emulator, listeners[-1], lambda link: _say(f"page on {link}"))
    server = ReadyServer(uvicorn_config(app), emulator, options.on_ready)
    _stop_when_deleted(settings.data_dir, server)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
        server.run(sockets=listeners)
    return _START_ERROR if server.exit_code else 0


def _open(settings: EmulatorSettings) -> Emulator:
    """Return the emulator of a data dir. Raises StatedError."""
    try:
        isolation = choose_isolation(settings.isolation, settings.data_dir)
        if isolation.owner is not None:  # with a umask of 077, tasks could not enter its folders
            os.umask(0o022)
        return Emulator(settings, isolation=isolation)
    except (StoreInUseError, StoreFormatError, sqlite3.Error, OSError) as err:
        raise _cannot_use(settings.data_dir, err) from err
    except IsolationError as err:
        fix = "use --isolation environment"
        raise StatedError("cannot isolate tasks", str(err), fix) from err


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises StatedError."""
    try:
        return bind(host, port)
    except OSError as err:
        fix = "use an address of this machine, such as --host 127.0.0.1"
        if err.errno in (errno.EADDRINUSE, errno.EACCES):
            fix = "use another port, or 0 for a free one, or stop what listens there"
        what = f"cannot listen on {host}, port {port}"
        raise StatedError(what, err.strerror or str(err), fix) from err


def _cannot_use(data_dir: Path, err: Exception) -> StatedError:
    what, code = f"cannot use {data_dir}", ""
    fix = "correct the cause, or use another --data-dir"
    if isinstance(err, StoreInUseError):
        fix = "use that emulator, stop it, or use another --data-dir"
    elif isinstance(err, StoreFormatError):
        state = shlex.quote(str(data_dir / "state.sqlite"))
        fix = f"run the version that wrote it, or delete all pools, jobs and tasks: rm {state}*"
        code = _STATE_FORMAT
    return StatedError(what, str(err), fix, code)


if __name__ == "__main__":
    sys.exit(main())
