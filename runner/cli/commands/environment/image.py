"""`runner image`: the VM image that nodes boot from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.options import StackOption, open_settings
from runner.cli.ui.output import Output, OutputFormat, OutputOption
from runner.core.progress import Progress
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.azure.arm.client import ArmClient
    from runner.cli.ui.terminal import StageDisplay
    from runner.flows.environment.images import BuildStatus, ImageHome, ImageVersion

app = typer.Typer(help="Build and list VM images of the stack, and print its container registry.")
_COLUMNS = ("version", "created", "state", "regions", "node_agent", "end_of_life", "pools")


@app.command()
def build(
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the image is built.")
    ] = True,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Build and verify a version of the image on a GPU node; Ctrl-C leaves the build running.

    Takes about an hour. If a build is active, watches that one.
    """
    from runner.flows.environment.images import (
        build_failure,
        built_version,
        find_template,
        start_build,
    )

    out = Output(output)
    management, home = _open(stack)
    template = find_template(management, home)
    before = start_build(management, template)
    name = template.rpartition("/")[2]
    if not wait:
        out.note("started; to watch it: runner image build; to list versions: runner image ls")
        out.record({"template": name, "state": "Running"})
        return
    status = _follow(out, management, template, before)
    if status.state != "Succeeded":
        raise build_failure(status)
    version = built_version(management, template)
    if output is OutputFormat.TABLE:
        out.note(f"built version {version}; pools use it with `image: {{source: gallery}}`")
    out.record({"version": version, "template": name, "state": status.state})


@app.command("ls")
def list_(stack: StackOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List versions of the image, newest first, with the pools that use them."""
    from runner.flows.environment.images import list_versions

    out = Output(output)
    rows = [_row(version, output) for version in list_versions(*_open(stack))]
    out.rows(rows, _COLUMNS, empty="no versions; to build one: runner image build")


@app.command()
def registry(stack: StackOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Print the host of the stack's container registry, for container images of tasks."""
    from runner.azure.auth.credentials import load_outputs
    from runner.flows.environment.images import container_registry_host

    out = Output(output)
    settings = open_settings("azure", stack).for_whole_stack()
    server = container_registry_host(load_outputs(settings), settings.stack)
    if output is OutputFormat.TABLE:
        out.text(server)
        return
    out.record({"stack": settings.stack, "registry": server})


def _open(stack: str | None) -> tuple[ArmClient, ImageHome]:
    from runner.azure.arm.client import open_arm
    from runner.azure.auth.credentials import load_outputs, outputs_cloud
    from runner.flows.environment.images import locate_image

    outputs = load_outputs(open_settings("azure", stack).for_whole_stack())
    home = locate_image(outputs)
    return open_arm(home.subscription, os.environ, outputs_cloud(outputs).name), home


def _follow(out: Output, management: ArmClient, template: str, before: BuildStatus) -> BuildStatus:
    from runner.flows.environment.images import watch_build

    last, phase = before, ""
    with out.stages() as view:
        try:
            for last in watch_build(management, template, before):
                phase = _draw(view, phase, last)
        except KeyboardInterrupt:
            view.log("detached; the build continues. To watch it: runner image build", error=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except RunnerError:
            view.log("the build may continue. To watch it: runner image build", error=True)
            raise
    return last


def _draw(view: StageDisplay, phase: str, status: BuildStatus) -> str:
    """Show the current phase of the build, and return it."""
    now = "" if status.over else (status.sub_state or status.state).lower()
    if phase and now != phase:
        failed = status.over and status.state != "Succeeded"
        view.on_progress(Progress(phase, "failed" if failed else "end"))
    if now:
        view.on_progress(Progress(now, "progress", f"the build is {status.state.lower()}"))
    return now


def _row(version: ImageVersion, output: OutputFormat) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "version": version.version,
        "created": version.created.isoformat() if version.created else None,
        "state": version.state,
        "regions": list(version.regions),
        "node_agent": version.node_agent,
        "end_of_life": version.end_of_life,
        "pools": list(version.pools),
    }
    if output is OutputFormat.JSON:
        return plain
    joined = {name: ", ".join(plain[name]) for name in ("regions", "pools")}
    created = version.created.date().isoformat() if version.created else ""
    return {**plain, **joined, "created": created}
