"""Applications: listed by the data plane, made and deleted through the emulator's own API."""

from __future__ import annotations

from batch_emulator.domain.applications import Application
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import Json
from batch_emulator.http import odata
from batch_emulator.http.call import Call, Reply


async def list_all(call: Call) -> Reply:
    """Application_List: only what has a version (docs)."""
    found = [(key, one.summary()) for key, one in call.emulator.applications.sorted()]
    return await call.listing(None, odata.from_sorted(found))


def get(call: Call) -> Reply:
    """Application_Get."""
    application = call.emulator.applications.require(call.params["applicationId"])
    if not application.versions:
        raise Fault("ApplicationNotFound")
    return call.entity(application.summary(), {})


def put(call: Call) -> Reply:
    """Make an application or change its settings; what is absent stays as it is."""
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
    try:
        package = await applications.store(application_id, version, call.stream, call.now)
    except OSError as err:
        raise Fault("InternalError", {"Reason": err.strerror or str(err)}) from err
    settings = {"defaultVersion": package.version} if call.query.get("default") == "true" else {}
    return Reply(201, _described(applications.change(application_id, settings)))


def delete_version(call: Call) -> Reply:
    """Delete a version; nodes keep what they have unpacked."""
    call.emulator.applications.delete(call.params["applicationId"], call.params["version"])
    return Reply(204)


def _described(application: Application) -> Json:
    return {
        **application.summary(),
        "defaultVersion": application.default_version,
        "allowUpdates": application.allow_updates,
    }
