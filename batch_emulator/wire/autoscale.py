"""What is allowed in the settings of automatic scaling."""

from __future__ import annotations

from datetime import timedelta

from batch_emulator.autoscale.errors import FormulaError
from batch_emulator.autoscale.evaluate import check
from batch_emulator.faults import Fault, bad_property
from batch_emulator.model import Json
from batch_emulator.values import parse_duration
from batch_emulator.wire.bodies import require

_SHORTEST, _LONGEST = timedelta(minutes=5), timedelta(hours=168)  # docs


def check_pool_scaling(body: Json) -> None:
    """Refuse what a new pool cannot have: a formula and targets, or only half of it. Raises Fault.

    `resizeTimeout` has no effect on a pool that scales automatically (docs).
    """
    if not body.get("enableAutoScale"):
        for name in ("autoScaleFormula", "autoScaleEvaluationInterval"):
            if name in body:
                raise _invalid(name, "it requires enableAutoScale")
        return
    require(body, "autoScaleFormula")
    for name in ("targetDedicatedNodes", "targetLowPriorityNodes"):
        if name in body:
            raise _invalid(name, "the formula sets the targets of this pool")
    check_scaling(body)


def check_scaling(body: Json) -> None:
    """Refuse an interval out of range and a text that is no formula. Raises Fault."""
    text = body.get("autoScaleEvaluationInterval")
    interval = None if text is None else parse_duration(text)
    if text is not None and (interval is None or not _SHORTEST <= interval <= _LONGEST):
        raise bad_property("autoScaleEvaluationInterval", text, "PT5M to P7D is allowed")
    if "autoScaleFormula" in body:
        check_formula(body["autoScaleFormula"])


def check_formula(text: str) -> None:
    """Refuse a text that is no formula, with the place where it is none. Raises Fault."""
    try:
        check(text)
    except FormulaError as err:
        raise Fault(err.code, {"Message": err.detail(text)}) from err


def _invalid(name: str, reason: str) -> Fault:
    return Fault("InvalidAutoScalingSettings", {"PropertyName": name, "Reason": reason})
