"""`runner`, with local nodes that are billed: a program of its own, which tests start.

The prices of VM size `local` in region `local` are in `prices.csv` of RUNNER_HOME.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from runner.cli.main import main
from runner.core import settings

if __name__ == "__main__":
    settings.LOCAL = replace(settings.LOCAL, is_billed=True)
    settings.TARGETS = {"local": settings.LOCAL, "azure": settings.AZURE}
    sys.exit(main())
