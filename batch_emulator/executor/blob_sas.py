"""Shared access signatures of blobs for a blob service behind TLS: Azurite sees plain HTTP only.

Sources: "Create a service SAS", "Create an account SAS" and "Create a user delegation SAS"
(learn.microsoft.com, read 2026-11-23), and Azurite 3.37 for its user delegation keys.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode

from batch_emulator.domain.shared_key import is_signature, sign

# Of an unchanged Azurite: whoever reaches its port can make the keys of its users.
_AZURITE_SEED = "azurite-user-delegation-signing-seed-v1"
_HEADERS = ("rscc", "rscd", "rsce", "rscl", "rsct")
_USER = ("skoid", "sktid", "skt", "ske", "sks", "skv")


def user_delegation_key(
    oid: str, tenant: str, start: str, expiry: str, version: str, *, seed: str
) -> str:
    """Return the key that Azurite derives for a user, base64; no seed stands for Azurite's own."""
    secret = base64.b64encode((seed or _AZURITE_SEED).encode()).decode()
    return sign("\n".join((oid, tenant, start, expiry, "b", version)), secret)


def without_protocol(path: str, raw_query: str, account: str, key: str, seed: str) -> str:
    """Return the query of a request with a SAS for HTTPS only, signed again for HTTP, too.

    Any other query is returned unchanged; the service refuses it if its signature is invalid.

    Args:
        path: The path as sent, without the account.
        raw_query: The query as sent.
        account: The name of the storage account.
        key: Its key, base64.
        seed: The seed of its user delegation keys, or "" for that of an unchanged Azurite.
    """
    pairs = parse_qsl(raw_query, keep_blank_values=True)
    query = dict(pairs)
    if query.get("spr") != "https" or "sig" not in query:
        return raw_query
    if "skoid" in query:
        names = ("skoid", "sktid", "skt", "ske", "skv")
        user = [query.get(name, "") for name in names]
        key = user_delegation_key(*user, seed=seed)
    if not is_signature(query["sig"], _text(path, query, account), key):
        return raw_query
    del query["spr"]
    changed = {**query, "sig": sign(_text(path, query, account), key)}
    kept = [(name, changed[name]) for name, _ in pairs if name in changed]
    return urlencode(kept, quote_via=quote)


def read_signature(path: str, expiry: str, account: str, key: str) -> str:
    """Return the query of a SAS that allows reading one blob.

    Args:
        path: The path of the blob as sent, without the account.
        expiry: When it ends, as 2026-12-31T06:00:00Z.
        account: The name of the storage account.
        key: Its key, base64.
    """
    query = {"sv": "2021-12-02", "sr": "b", "sp": "r", "se": expiry}
    signed = sign(_text(path, query, account), key)
    return urlencode({**query, "sig": signed}, quote_via=quote)


def _text(path: str, query: Mapping[str, str], account: str) -> str:
    """Return the string to sign of a shared access signature."""
    version = query.get("sv", "")

    def values(*names: str) -> list[str]:
        return [query.get(name, "") for name in names]

    scope = values("ses") if version >= "2020-12-06" else []
    if "ss" in query:
        fields = values("sp", "ss", "srt", "st", "se", "sip", "spr", "sv")
        return "".join(f"{line}\n" for line in (account, *fields, *scope))
    signed = unquote(path).strip("/")
    if query.get("sr") == "c":
        signed = signed.partition("/")[0]
    first = [*values("sp", "st", "se"), f"/blob/{account}/{signed}"]
    origin, resource = values("sip", "spr", "sv"), values("sr", "snapshot")
    if "skoid" not in query:
        resource = resource if version >= "2018-11-09" else []
        lines = [*first, *values("si"), *origin, *resource, *scope]
    else:
        agents = values("saoid", "suoid", "scid") if version >= "2020-02-10" else []
        users = values("skdutid", "sduoid") if version >= "2025-07-05" else []
        required = values("srh", "srq") if version >= "2026-04-06" else []
        user = [*values(*_USER), *agents, *users]
        lines = [*first, *user, *origin, *resource, *scope, *required]
    return "\n".join([*lines, *values(*_HEADERS)])
