"""`runner version`."""

from __future__ import annotations

from runner.cli.output import Output, OutputFormat, OutputOption


def version(output: OutputOption = OutputFormat.TABLE) -> None:
    """Print the versions of runner, Python and the SDKs."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from runner.flows.extras import DISTRIBUTION

    found = {"runner": installed(DISTRIBUTION), "python": platform.python_version()}
    for name in ("azure-batch", "azure-storage-blob", "azure-identity", "uv"):
        try:
            found[name] = installed(name)
        except PackageNotFoundError:
            found[name] = ""
    Output(output).record({**found, "platform": platform.platform()})
