"""Certificates."""

from __future__ import annotations

from batch_emulator.domain.certificates import certificate_url, shown
from batch_emulator.http import odata
from batch_emulator.http import odata as paging
from batch_emulator.http.call import Call, Reply


def add(call: Call) -> Reply:
    """Certificate_Add."""
    thumbprint = call.emulator.certificates.add(call.json(), call.now)
    url = certificate_url(call.base_url, thumbprint)
    return Reply(201, None, {"Location": url, "DataServiceId": url})


async def list_all(call: Call) -> Reply:
    """Certificate_List."""
    found = call.emulator.certificates.sorted()
    rendered = [(key, shown(record, call.base_url)) for key, record in found]
    return await call.listing(odata.CERTIFICATE_FIELDS, paging.from_sorted(rendered))


def get(call: Call) -> Reply:
    """Certificate_Get."""
    record = call.emulator.certificates.find(call.params["certificate"])
    return call.entity(shown(record, call.base_url), {})


def delete(call: Call) -> Reply:
    """Certificate_Delete."""
    certificates = call.emulator.certificates
    record = certificates.find(call.params["certificate"])
    certificates.delete(record, call.emulator.account.pools.values(), call.now)
    return Reply(202)


def cancel_deletion(call: Call) -> Reply:
    """Certificate_CancelDeletion."""
    certificates = call.emulator.certificates
    certificates.cancel_deletion(certificates.find(call.params["certificate"]), call.now)
    return Reply(204, None, call.data_service_id())
