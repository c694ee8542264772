"""The entry of Pulumi.yaml: what `pulumi up` and `pulumi preview` run."""

from pathlib import Path

from infra.collector import paused

with paused():
    from infra.program import program

    # Pulumi's own answer, get_root_directory(), is None under an older host, such as that of 3.79.
    program(Path(__file__).parents[1])
