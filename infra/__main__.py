"""What `pulumi up` runs."""

from pathlib import Path

import pulumi

from infra.collector import paused

with paused():
    from infra.program import program

    program(Path(pulumi.get_root_directory()))
