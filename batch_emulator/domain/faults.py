"""The errors that the service answers; `faults.txt` has their status, code and message. Beside
them, the error for whoever runs the emulator.

Codes are those of the service's error code list (BatchErrorCodeStrings); where the docs give no
text, the wording is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib.resources import files
from math import ceil


def load_faults(package: str) -> Mapping[str, tuple[int, str]]:
    """Return status and message by code, from the table of a package."""
    lines = (files(package) / "faults.txt").read_text("utf-8").splitlines()
    rows = (line.split(maxsplit=2) for line in lines if line and not line.startswith("#"))
    return {code: (int(status), message) for status, code, message in rows}


FAULTS = load_faults("batch_emulator.domain")


class Fault(Exception):  # noqa: N818 - the service's word for an error answer
    """An error answer; its `values` in the body are the wrong value and the allowed ones."""

    def __init__(
        self,
        code: str,
        values: Mapping[str, str] | None = None,
        *,
        message: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        default_status, default_message = FAULTS.get(code, (400, code))
        super().__init__(code)
        self.code = code
        self.status = status or default_status
        self.message = message or default_message
        self.values = dict(values or {})
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Return headers of the answer, in addition to the common ones."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(ceil(self.retry_after_s))}


class StatedError(Exception):
    """An error for whoever runs the emulator, not for its clients: what, why and fix.

    Programs that start the emulator know it by `code`, if it has one.
    """

    def __init__(self, what: str, why: str, fix: str, code: str = "") -> None:
        super().__init__(f"{what}: {why}; {fix}")
        self.what = what
        self.why = why
        self.fix = fix
        self.code = code

    @property
    def text(self) -> str:
        """Return the error for a terminal, in three lines, and a fourth with the code."""
        lines = f"error: {self.what}\n  why: {self.why}\n  fix: {self.fix}"
        return f"{lines}\n  code: {self.code}" if self.code else lines


def bad_property(name: str, value: object, reason: str) -> Fault:
    """Return the Fault for an invalid property of the body."""
    return Fault(
        "InvalidPropertyValue",
        {"PropertyName": name, "PropertyValue": str(value)[:256], "Reason": reason},
    )


def bad_query(name: str, value: object, reason: str) -> Fault:
    """Return the Fault for an invalid query parameter."""
    return Fault(
        "InvalidQueryParameterValue",
        {
            "QueryParameterName": name,
            "QueryParameterValue": str(value)[:256],
            "Reason": reason,
        },
    )


_ROOM_EXPECTED_S = 5.0


def no_room(reason: str) -> Fault:
    """Return the Fault of a request that cannot be stored now. Clients try again [S].

    Source of the code: "Batch status and error codes", learn.microsoft.com, read 2026-11-23.
    """
    return Fault("ServerBusy", {"Reason": reason}, retry_after_s=_ROOM_EXPECTED_S)


def not_implemented(operation: str) -> Fault:
    """Return the Fault for a documented operation or property that is not emulated yet."""
    return Fault("NotImplemented", {"Operation": operation})


def error_body(fault: Fault, request_id: str, now: datetime, base_url: str) -> dict[str, object]:
    """Return the wire form; its message ends with the lines RequestId and Time, as the service's
    does.
    """
    time = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    body: dict[str, object] = {
        "odata.metadata": f"{base_url}/$metadata#Microsoft.Azure.Batch.Protocol.Entities."
        "Container.errors/@Element",
        "code": fault.code,
        "message": {
            "lang": "en-US",
            "value": f"{fault.message}\nRequestId:{request_id}\nTime:{time}",
        },
    }
    if fault.values:
        body["values"] = [{"key": key, "value": value} for key, value in fault.values.items()]
    return body
