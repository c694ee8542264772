"""What is allowed in a job's `poolInfo`, and what of it fails the job instead of the request."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy

from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json, part
from batch_emulator.wire.bodies import require, require_choice

_MAX_PREFIX = 20  # docs: autoPoolIdPrefix
_PREFIX = re.compile(rf"[A-Za-z0-9_-]{{0,{_MAX_PREFIX}}}")

# Page "Batch status and error codes", job scheduling errors: code and message by what is wrong
# with the pool. What is not listed here is refused with the request itself.
_FORMULA = (
    "InvalidAutoScaleFormulaInAutoPool",
    "The specified auto-scaling settings are not valid.",
)
_PACKAGES = (
    "InvalidApplicationPackageReferencesInAutoPool",
    "One or more application packages specified for the pool are invalid.",
)
_CERTIFICATES = (
    "InvalidCertificatesInAutoPool",
    "The specified certificate references in the auto pool specification are not valid.",
)
_SCHEDULING_ERRORS = {
    "AutoScalingFormulaSyntaxError": _FORMULA,
    "AutoScaleFormulaTooLong": _FORMULA,
    "AutoScalingFormulaEvaluationError": _FORMULA,
    "InsufficientSampleData": _FORMULA,
    "InvalidAutoScalingSettings": _FORMULA,
    "ApplicationNotFound": _PACKAGES,
    "InvalidApplicationPackageReferences": _PACKAGES,
    "CertificateNotFound": _CERTIFICATES,
    "InvalidCertificateReferences": _CERTIFICATES,
    "PoolQuotaReached": (
        "AutoPoolCreationFailedWithQuotaReached",
        "The pool quota for the account is reached.",
    ),
}
_OTHER = ("InvalidAutoPoolSettings", "The specified autopool settings are not valid.")


def check(body: Json, check_pool: Callable[[Json], None], *, scheduled: bool) -> None:
    """Refuse a poolInfo that names no pool, two, or one that cannot be. Raises Fault."""
    require(body, "poolInfo")
    info = part(body, "poolInfo")
    auto = part(info, "autoPoolSpecification")
    if "autoPoolSpecification" not in info:
        require(body, "poolInfo/poolId")
        return
    if "poolId" in info:
        raise bad_property("poolInfo", info["poolId"], "either a pool or an auto pool")
    require(auto, "poolLifetimeOption", "pool")
    require_choice(auto, "poolLifetimeOption", "jobschedule", "job")
    if auto["poolLifetimeOption"] == "jobschedule" and not scheduled:
        reason = "applies to job schedules only"
        raise bad_property("poolLifetimeOption", "jobschedule", reason)
    prefix = auto.get("autoPoolIdPrefix") or ""
    if not _PREFIX.fullmatch(prefix):
        reason = f"up to {_MAX_PREFIX} letters, digits, hyphens and underscores"
        raise bad_property("autoPoolIdPrefix", prefix, reason)
    try:
        check_pool({**deepcopy(auto["pool"]), "id": "auto"})
    except Fault as err:
        if err.code not in _SCHEDULING_ERRORS:
            raise


def scheduling_error(fault: Fault) -> Json:
    """A job's schedulingError for what stood in the way of its auto pool."""
    code, message = _SCHEDULING_ERRORS.get(fault.code, _OTHER)
    details = [{"name": name, "value": value} for name, value in fault.values.items()]
    error: Json = {"category": "usererror", "code": code, "message": message}
    return error | ({"details": details} if details else {})
