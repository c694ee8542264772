"""The token of a CI job in a file, for programs that cannot ask the CI system for one.

Pulumi's engine signs in to the blobs of its state and to its key with the Azure SDK for Go, which
reads no ARM_ variables and knows no CI system, but reads AZURE_FEDERATED_TOKEN_FILE:
https://learn.microsoft.com/azure/developer/go/sdk/authentication/credential-chains and
https://github.com/pulumi/docs/pull/18272 (read 2026-11-29).

A token of GitHub is valid for minutes and each command of Pulumi signs in again, so the file is
renewed while this process runs.
"""

from __future__ import annotations

import atexit
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from runner.azure.auth.sign_in import workload_assertion

RENEW_S = 120.0  # GitHub's tokens are valid for five minutes or more
_FILE = "AZURE_FEDERATED_TOKEN_FILE"


def workload_token_file(env: Mapping[str, str], *, renew_s: float = RENEW_S) -> Mapping[str, str]:
    """Return the variables with which the Azure SDKs sign in with the token of a CI job.

    They are empty unless ARM_USE_OIDC selects a token that the CI system issues. The file is
    deleted when this process ends.

    Args:
        env: the variables of the command.
        renew_s: the time between two tokens.

    Raises:
        ClientAuthenticationError: the CI system gave no token.
    """
    if env.get(_FILE):
        return {}
    found = workload_assertion(env)
    if found is None:
        return {}
    client, tenant, ask = found
    kept = tempfile.TemporaryDirectory(prefix="runner-token-")  # readable by its owner only
    atexit.register(kept.cleanup)
    file = Path(kept.name) / "token"
    _write(file, ask())
    threading.Thread(target=_renew, args=(file, ask, renew_s), daemon=True).start()
    return {_FILE: str(file), "AZURE_CLIENT_ID": client, "AZURE_TENANT_ID": tenant}


def _renew(file: Path, ask: Callable[[], str], renew_s: float) -> None:
    pause = threading.Event()
    while not pause.wait(renew_s):
        # The present token may still be valid, and the next attempt may succeed.
        with suppress(Exception):
            _write(file, ask())


def _write(file: Path, token: str) -> None:
    """Replace the file at once, because a program may be reading it."""
    part = file.with_suffix(".part")
    part.write_text(token, encoding="utf-8")
    part.chmod(0o600)
    part.replace(file)
