"""The Azure environment as a Pulumi program. Start reading in `program`.

The package has a name of its own because it is installed beside the modules of other people: a
project that trains may have a package `infra`.
"""
