"""`python -m batch_emulator.gateway ... -- COMMAND`: run a command against the local services.

The command reaches them by Azure's host names. The keys come from AZURE_BATCH_ACCESS_KEY and
AZURE_STORAGE_KEY, and the seed of user delegation keys from BATCH_EMULATOR_STORAGE_SEED.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from batch_emulator.domain.faults import StatedError

_USAGE_ERROR = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code, or 2 if a key or a package is missing."""
    parser = argparse.ArgumentParser(prog="python -m batch_emulator.gateway")
    parser.add_argument("--account", required=True, help="name of both accounts")
    parser.add_argument("--batch", required=True, metavar="URL", help="the Batch emulator")
    parser.add_argument(
        "--blob", required=True, metavar="URL", help="Azurite, with the account in its path"
    )
    parser.add_argument("--file", required=True, metavar="URL", help="Azure Files, likewise")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        keys = (_key("AZURE_BATCH_ACCESS_KEY"), _key("AZURE_STORAGE_KEY"))
        _require_cryptography()
    except StatedError as err:
        sys.stderr.write(f"{err.text}\n")
        return _USAGE_ERROR
    from batch_emulator.gateway.command import SEED, run  # noqa: PLC0415  needs cryptography
    from batch_emulator.gateway.proxy import Gateway  # noqa: PLC0415
    from batch_emulator.gateway.services import LocalServices  # noqa: PLC0415
    from batch_emulator.gateway.sign_in import NamedAccounts  # noqa: PLC0415

    account = NamedAccounts(options.account, *keys, os.environ.get(SEED, ""))
    gateway = Gateway(LocalServices(account, options.batch, options.blob, options.file))
    gateway.start()
    try:
        return run(gateway, options.command)
    finally:
        gateway.close()


def _key(name: str) -> str:
    key = os.environ.get(name)
    if not key:
        why = f"{name} is empty or not set"
        raise StatedError("missing account key", why, f"set {name} to the key of the account")
    return key


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        fix = "pip install 'batch-emulator[azure-names]'"
        raise StatedError("missing package cryptography", "it makes the certificates", fix)


if __name__ == "__main__":
    sys.exit(main())
