"""Signatures that admit HTTPS only, against those that the official SDK makes."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest
from azure.storage.blob import (
    AccountSasPermissions,
    BlobSasPermissions,
    ContainerSasPermissions,
    ResourceTypes,
    UserDelegationKey,
    generate_account_sas,
    generate_blob_sas,
    generate_container_sas,
)

from batch_emulator.executor.blob_sas import user_delegation_key, without_protocol

KEY = base64.b64encode(b"a key").decode()
SEED = "the seed of this account"
START = datetime(2026, 1, 1, tzinfo=UTC)
TIMES: dict[str, Any] = {"start": START, "expiry": START + timedelta(hours=1)}


def _user_key() -> UserDelegationKey:
    key = UserDelegationKey()
    key.signed_oid, key.signed_tid, key.signed_service = "user", "tenant", "b"
    key.signed_start, key.signed_expiry = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    key.signed_version = "2025-01-05"
    key.value = user_delegation_key(
        "user", "tenant", key.signed_start, key.signed_expiry, key.signed_version, seed=SEED
    )
    return key


def _blob(protocol: str | None, **given: Any) -> str:
    permission = BlobSasPermissions(read=True)
    return generate_blob_sas(
        "mine", "box", "a b/c.txt", permission=permission, protocol=protocol, **TIMES, **given
    )


def _container(protocol: str | None, **given: Any) -> str:
    permission = ContainerSasPermissions(read=True, list=True)
    return generate_container_sas(
        "mine", "box", permission=permission, protocol=protocol, **TIMES, **given
    )


def _account(protocol: str | None) -> str:
    types, permission = ResourceTypes(object=True), AccountSasPermissions(read=True)
    given: dict[str, Any] = {} if protocol is None else {"protocol": protocol}
    return generate_account_sas("mine", KEY, types, permission, **TIMES, **given)


@pytest.mark.parametrize("by", ["key", "user"])
@pytest.mark.parametrize("make", [_blob, _container])
def test_signature_of_a_blob_or_container_is_signed_for_http(make: Any, by: str) -> None:
    given = {"account_key": KEY} if by == "key" else {"user_delegation_key": _user_key()}
    new = without_protocol("/box/a%20b/c.txt", make("https", **given), "mine", KEY, SEED)
    assert parse_qs(new) == parse_qs(make(None, **given))


def test_signature_of_an_account_is_signed_for_http() -> None:
    new = without_protocol("/box/a%20b/c.txt", _account("https"), "mine", KEY, SEED)
    expected = parse_qs(_account(None))
    assert parse_qs(new) == expected


@pytest.mark.parametrize("changed", ["/box/other.txt", "/other/a%20b/c.txt"])
def test_other_signatures_are_unchanged(changed: str) -> None:
    sas = _blob("https", account_key=KEY)
    assert without_protocol(changed, sas, "mine", KEY, SEED) == sas


def test_query_without_a_protocol_limit_is_unchanged() -> None:
    sas = _blob(None, account_key=KEY)
    assert without_protocol("/box/a%20b/c.txt", sas, "mine", KEY, SEED) == sas
    assert without_protocol("/box", "restype=container&comp=list", "mine", KEY, SEED) == (
        "restype=container&comp=list"
    )
