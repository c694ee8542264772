"""What `pulumi up` runs."""

from infra.program import program

program()
