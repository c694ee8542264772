"""The credential of a person or machine at Azure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential


def default_credential() -> TokenCredential:
    """`az login`, a managed identity, or the AZURE_ variables; nothing is sent yet."""
    import logging  # noqa: PLC0415  with the first request

    from azure.identity import DefaultAzureCredential  # noqa: PLC0415  0.4 s

    # It warns with fifteen lines of its own where nobody is signed in; we say it in three.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    return DefaultAzureCredential()
