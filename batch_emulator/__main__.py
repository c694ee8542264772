"""`python -m batch_emulator`: check the options, then serve on a loopback address."""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import ipaddress
import logging
import os
import socket
import sqlite3
import sys
from pathlib import Path

import uvicorn

from batch_emulator import __version__
from batch_emulator.account import Limits
from batch_emulator.app import App
from batch_emulator.emulator import Emulator, Settings
from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.store import StoreFormatError, StoreInUseError

_USAGE_ERROR = 2
_START_ERROR = 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m batch_emulator", description="An emulator of the Azure Batch data plane."
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it")
    parser.add_argument("--account", required=True, help="name of the Batch account")
    parser.add_argument("--key", help="its key, base64; better from BATCH_EMULATOR_KEY")
    parser.add_argument("--data-dir", type=Path, required=True, help="where state and nodes lie")
    parser.add_argument("--boot-seconds", type=float, default=1.0, help="how long a node boots")
    parser.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="PATTERN",
        help="variables of this process that tasks inherit, beside PATH and LANG (repeatable)",
    )
    parser.add_argument("--dedicated-core-quota", type=int, help="cores over all dedicated nodes")
    parser.add_argument("--spot-core-quota", type=int, help="cores over all spot nodes")
    parser.add_argument("--kill-grace-seconds", type=float, default=5.0)
    parser.add_argument(
        "--storage-account",
        metavar="NAME",
        help="serve Azure Files for this account; its key comes from BATCH_EMULATOR_STORAGE_KEY",
    )
    return parser


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _key(given: str | None, variable: str) -> str | None:
    """The key when it is base64 of something."""
    key = given or os.environ.get(variable, "")
    try:
        return key if base64.b64decode(key, validate=True) else None
    except binascii.Error:
        return None


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)  # who connects from now on is answered as soon as we serve
    except OSError:
        listener.close()
        raise
    return listener


def _say(text: str, code: int = 0) -> int:
    stream = sys.stderr if code else sys.stdout
    stream.write(text + "\n")
    stream.flush()
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run the server; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs URLs with their SAS
    if not _is_loopback(options.host):
        return _say(
            f"error: {options.host} is not a loopback address\n"
            "  why: whoever reaches this port with the key can run commands on this machine\n"
            "  fix: use --host 127.0.0.1",
            _USAGE_ERROR,
        )
    key = _key(options.key, "BATCH_EMULATOR_KEY")
    if key is None:
        return _say(
            "error: no account key\n  why: --key and BATCH_EMULATOR_KEY are empty or not base64\n"
            "  fix: BATCH_EMULATOR_KEY=$(head -c 64 /dev/urandom | base64 -w0)",
            _USAGE_ERROR,
        )
    storage_key = _key(None, "BATCH_EMULATOR_STORAGE_KEY")
    if options.storage_account and storage_key is None:
        return _say(
            "error: no key for the storage account\n"
            "  why: BATCH_EMULATOR_STORAGE_KEY is empty or not base64\n"
            "  fix: set it to the account's key, or leave --storage-account out",
            _USAGE_ERROR,
        )
    storage = StorageAccount(options.storage_account, storage_key) if storage_key else None
    try:
        listener = bind(options.host, options.port)
    except OSError as err:
        return _say(f"error: cannot listen on {options.host}:{options.port}: {err}", _START_ERROR)
    return _serve(options, key, storage if options.storage_account else None, listener)


def _serve(
    options: argparse.Namespace,
    key: str,
    storage: StorageAccount | None,
    listener: socket.socket,
) -> int:
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    settings = Settings(
        data_dir=options.data_dir.resolve(),
        account=options.account,
        key=key,
        url=url,
        limits=Limits(options.dedicated_core_quota, options.spot_core_quota, options.boot_seconds),
        pass_env=tuple(options.pass_env),
        kill_grace_s=options.kill_grace_seconds,
        storage=storage,
    )
    try:
        emulator = Emulator(settings)
    except (StoreInUseError, StoreFormatError, sqlite3.Error, OSError) as err:
        return _say(f"error: cannot use {settings.data_dir}: {err}", _START_ERROR)
    config = uvicorn.Config(
        App(emulator), http="httptools", access_log=False, log_level="warning", lifespan="on"
    )
    _say(f"listening on {url} account {settings.account}")
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
        uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
