"""Run a command that reaches the local services by Azure's host names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from batch_emulator.domain.faults import StatedError
from batch_emulator.gateway.client_variables import bundle_of, client_variables
from batch_emulator.gateway.java import OwnUserPort, java_variables, trust_store
from batch_emulator.gateway.proxy import Gateway
from batch_emulator.gateway.sign_in import (
    CLIENT,
    GROUP,
    REGION,
    SUBSCRIPTION,
    TENANT,
)

SEED = "BATCH_EMULATOR_STORAGE_SEED"  # of user delegation keys
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


def environment_of(gateway: Gateway, bundle: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command: the proxy, its authority, names and credentials."""
    account = gateway.services.account
    storage = {
        "DefaultEndpointsProtocol": "https",
        "AccountName": account.name,
        "AccountKey": account.storage_key,
        "EndpointSuffix": "core.windows.net",
    }
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("AZURE_") and name.lower() != "all_proxy" and name != SEED
    }
    return {
        **kept,
        **client_variables(gateway, str(bundle)),
        "AZURE_TENANT_ID": TENANT,
        "AZURE_CLIENT_ID": CLIENT,
        "AZURE_CLIENT_SECRET": gateway.tokens.secret,
        "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
        "AZURE_RESOURCE_GROUP": GROUP,
        "AZURE_LOCATION": REGION,
        "AZURE_BATCH_ACCOUNT": account.name,
        "AZURE_BATCH_ACCESS_KEY": account.batch_key,
        "AZURE_BATCH_ENDPOINT": f"https://{account.batch_host}",
        "AZURE_STORAGE_ACCOUNT": account.name,
        "AZURE_STORAGE_KEY": account.storage_key,
        "AZURE_STORAGE_CONNECTION_STRING": ";".join(f"{n}={v}" for n, v in storage.items()),
        "AZURE_STORAGE_BLOB_ENDPOINT": f"https://{account.storage_host('blob')}",
        "AZURE_STORAGE_FILE_ENDPOINT": f"https://{account.storage_host('file')}",
    }


def run(gateway: Gateway, command: list[str]) -> int:
    """Run the command to its end and return its exit code, 128 and the signal if one ended it."""
    with (
        tempfile.TemporaryDirectory(prefix="azure-names-") as folder,
        OwnUserPort(gateway) as port,
    ):
        bundle, store = Path(folder) / "authorities.pem", Path(folder) / "authorities.p12"
        bundle.write_bytes(bundle_of(gateway))
        store.write_bytes(trust_store(bundle.read_bytes()))
        environment = environment_of(gateway, bundle, os.environ)
        environment |= java_variables(port.port, store, os.environ)
        process: subprocess.Popen[bytes] | None = None
        asked_to_end = False

        def end(_number: int, _frame: FrameType | None) -> None:
            nonlocal asked_to_end
            asked_to_end = True
            if process is not None:
                process.terminate()

        # Set before the command starts. Ctrl-C reaches the command as well, and the command
        # decides. SIG_IGN instead of a handler that does nothing would be inherited by it.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, end)
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as err:
            fix = "check the name of the program"
            stated = StatedError(f"cannot run {command[0]}", err.strerror or str(err), fix)
            sys.stderr.write(f"{stated.text}\n")
            return _NOT_FOUND if isinstance(err, FileNotFoundError) else _NOT_EXECUTABLE
        if asked_to_end:
            process.terminate()
        code = process.wait()
    return 128 - code if code < 0 else code
