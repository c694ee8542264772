"""Handlers of applications and certificates, which nodes can install."""

from __future__ import annotations

from batch_emulator.domain.applications import Application, Certificates, shown_certificate
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import Json
from batch_emulator.http import odata
from batch_emulator.http.call import Call, Reply


def _certificates(call: Call) -> Certificates:
    """Return the certificates as they are at the time of the request."""
    call.emulator.certificates.settle(call.emulator.account.pools.values(), call.now)
    return call.emulator.certificates


def add_certificate(call: Call) -> Reply:
    """Certificate_Add."""
    thumbprint = _certificates(call).add(call.json(), call.now)
    # in other case than the URL that reads return (recorded)
    url = f"{call.base_url}/certificates(ThumbprintAlgorithm=sha1,Thumbprint={thumbprint})"
    return Reply(201, None, {"Location": url, "DataServiceId": url})


async def list_certificates(call: Call) -> Reply:
    """Certificate_List."""
    found = _certificates(call).sorted()
    rendered = [(key, shown_certificate(record, call.base_url)) for key, record in found]
    return await call.listing(odata.CERTIFICATE_FIELDS, odata.from_sorted(rendered))


def get_certificate(call: Call) -> Reply:
    """Certificate_Get."""
    record = _certificates(call).find(call.params["certificate"])
    return call.entity(shown_certificate(record, call.base_url), {})


def delete_certificate(call: Call) -> Reply:
    """Certificate_Delete."""
    certificates = _certificates(call)
    record = certificates.find(call.params["certificate"])
    certificates.delete(record, call.now, call.emulator.account.limits.delete_s)
    return Reply(202)


def cancel_deletion(call: Call) -> Reply:
    """Certificate_CancelDeletion."""
    certificates = _certificates(call)
    certificates.cancel_deletion(certificates.find(call.params["certificate"]), call.now)
    return Reply(204, None, call.data_service_id())


async def list_all(call: Call) -> Reply:
    """Application_List: only applications with a version (docs)."""
    found = [(key, one.summary()) for key, one in call.emulator.applications.sorted()]
    return await call.listing(None, odata.from_sorted(found))


def get(call: Call) -> Reply:
    """Application_Get."""
    application = call.emulator.applications.require(call.params["applicationId"])
    if not application.versions:
        raise Fault("ApplicationNotFound")
    return call.entity(application.summary(), {})


def put(call: Call) -> Reply:
    """Create an application or change its settings; absent settings stay."""
    body = call.json(optional=True)
    application = call.emulator.applications.change(call.params["applicationId"], body)
    return Reply(200, _described(application))


def delete(call: Call) -> Reply:
    """Delete an application with all of its versions."""
    call.emulator.applications.delete(call.params["applicationId"], None)
    return Reply(204)


async def put_version(call: Call) -> Reply:
    """Store the body, a zip file, as a version; `?default=true` makes it the default one."""
    if call.stream is None:
        raise Fault("InvalidRequestBody")
    applications, application_id = call.emulator.applications, call.params["applicationId"]
    version = call.params["version"]
    package = await applications.store(application_id, version, call.stream, call.now)
    settings = {"defaultVersion": package.version} if call.query.get("default") == "true" else {}
    return Reply(201, _described(applications.change(application_id, settings)))


def delete_version(call: Call) -> Reply:
    """Delete a version; nodes keep the copy that they unpacked."""
    call.emulator.applications.delete(call.params["applicationId"], call.params["version"])
    return Reply(204)


def _described(application: Application) -> Json:
    return {
        **application.summary(),
        "defaultVersion": application.default_version,
        "allowUpdates": application.allow_updates,
    }
