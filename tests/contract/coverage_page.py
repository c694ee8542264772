"""The gaps on the coverage page: the only 501 responses that tests accept."""

from __future__ import annotations

import re

from batch_emulator.http.routes.table import ROUTES
from tools import emulator_coverage


def is_named_as_missing(name: str) -> bool:
    """Return True for an operation without a handler, or a gap on the coverage page."""
    unwritten = any(route.operation == name for route in ROUTES if route.handler is None)
    refused = " ".join(name for _, names in emulator_coverage._REFUSED for name in names)
    return unwritten or re.split(r"[./:]", name)[-1] in re.findall(r"\w+", refused)
