"""The entry point that Pulumi.yaml names: what `pulumi up` and `pulumi preview` run."""

from pathlib import Path

from runner_infra.program import program

# Under an older host, such as 3.79, get_root_directory() of Pulumi returns None.
program(Path(__file__).parents[1])
