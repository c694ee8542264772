"""The state that people and a workflow share: where it is, and what encrypts its secrets.

`Pulumi.yaml` names the backend (`backend: {url: azblob://…}`), and the stack's file its key
(`secretsprovider: azurekeyvault://…`), so that a clone of the project is enough.
https://www.pulumi.com/docs/iac/concepts/state-and-backends/#azure-blob-storage and
https://www.pulumi.com/docs/iac/concepts/secrets/#azure-key-vault (read 2026-11-29)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from runner.core.yaml_files import read_document

_PASSPHRASE = "passphrase"  # noqa: S105 - the name of a provider


def backend_variables(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return PULUMI_BACKEND_URL of the project, if no variable sets one.

    Raises:
        RunnerError: `Pulumi.yaml` cannot be read.
    """
    file = folder / "Pulumi.yaml"
    if env.get("PULUMI_BACKEND_URL") or not file.is_file():
        return {}
    found: Any = read_document(file, code="R-PROJECT").data.get("backend")
    url = cast("dict[str, Any]", found).get("url") if isinstance(found, dict) else None
    return {"PULUMI_BACKEND_URL": str(url)} if url else {}


def is_remote(backend: str | None) -> bool:
    """Return True for state in Azure Blob Storage, to which Pulumi's engine signs in."""
    return bool(backend) and str(backend).startswith("azblob://")


def read_secrets_provider(file: Path) -> str | None:
    """Return what encrypts the secrets of a stack; None means a passphrase.

    Raises:
        RunnerError: the file cannot be read.
    """
    if not file.is_file():
        return None
    found = read_document(file, code="R-STACK-CONFIG").data.get("secretsprovider")
    return None if found in (None, "", _PASSPHRASE) else str(found)
