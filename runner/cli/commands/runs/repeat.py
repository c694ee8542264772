"""`runner retry` and `runner resume`: repeat a run from the beginning or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import options
from runner.cli.commands.runs.attach import Followed, follow, note_kept_node, report
from runner.cli.ui.output import Output, why_declined
from runner.core.progress import OnProgress, ignore_progress
from runner.core.recipe.options import OPTIONS
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.planning.fallback import PoolChance
    from runner.flows.submit.consent import Consent
    from runner.protocol.run_spec import RunSpec


OtherPoolOption = Annotated[
    str | None, typer.Option(help="Pool to run on.", show_default="the pool of the run")
]


KeepNodeOption = Annotated[
    str | None,
    typer.Option(
        "--keep-node", metavar="TIME", help=OPTIONS["keep_node"].help, show_default="as before"
    ),
]


NotifyOption = Annotated[
    str | None,
    typer.Option("--notify", metavar="NAME", help=OPTIONS["notify"].help, show_default="as before"),
]


SendEnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--send-env",
        metavar="NAME",
        help="Variable of this machine to send if the run asks for it; can be repeated.",
    ),
]


def to_consent(out: Output, names: list[str] | None, again: str, group: str = "") -> Consent:
    """Return what the user agrees to send; `again` is the command without --send-env."""
    from runner.flows.submit.consent import Consent

    return Consent(frozenset(names or ()), out.confirm, again, why_declined, group)


def submit_and_follow(
    out: Output,
    connection: Connection,
    submit: Callable[[OnProgress], RunSpec],
    *,
    detach: bool,
    output_dir: Path | None,
) -> tuple[RunSpec, Followed | None]:
    """Submit a run and watch it. Return the run, and its end unless detached.

    Raises:
        typer.Exit: 130 after Ctrl-C; the run stays active.
    """
    from runner.flows.runs.outputs import check_output_folder

    if output_dir is not None and not detach:
        check_output_folder(output_dir)
    with out.stages() as view:
        try:
            spec = submit(view.on_progress)
        except KeyboardInterrupt:
            view.log(
                "interrupted; run `runner ps` to check whether the run was submitted", error=True
            )
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        if detach:
            return spec, None
        view.log(f"run {spec.run_id}   (Ctrl-C leaves it running)", error=True)
        return spec, follow(out, view, connection, spec, output_dir)


def _repeat(
    out: Output,
    connection: Connection,
    submit: Callable[[OnProgress], RunSpec],
    *,
    detach: bool,
    output_dir: Path | None,
) -> None:
    """Submit a run and watch it. Print how it ended, or how to watch it if detached."""
    spec, followed = submit_and_follow(
        out, connection, submit, detach=detach, output_dir=output_dir
    )
    if followed is not None:
        report(out, connection, spec, followed)
    else:
        show_submitted(out, spec)


def show_submitted(out: Output, spec: RunSpec, chances: Sequence[PoolChance] = ()) -> None:
    """Print a detached run; as a document, with the pools that it names and their reasons."""
    submitted: dict[str, Any] = {
        "run_id": spec.run_id, "job_id": spec.job_id, "pool": spec.pool,
    }  # fmt: skip
    if chances and out.document({**submitted, "pools": [each.to_json() for each in chances]}):
        return
    out.record(submitted)
    out.note(f"to watch it: runner attach {spec.run_id}")


_COLUMNS = ("run_id", "retry_of", "pool")

FailedOption = Annotated[
    bool,
    typer.Option(
        "--failed",
        help="Retry every failed or lost run that was not retried yet, and return at once.",
    ),
]
ExperimentOption = Annotated[
    str | None,
    typer.Option("--experiment", "-e", help="With --failed, only runs of this experiment."),
]


@options.on_target
def retry(
    call: options.Invocation,
    run: options.RunOrNoneArgument = None,
    failed: FailedOption = False,
    experiment: ExperimentOption = None,
    pool: OtherPoolOption = None,
    keep_node: KeepNodeOption = None,
    notify: NotifyOption = None,
    send_env: SendEnvOption = None,
    detach: options.DetachOption = False,
    download: options.DownloadOption = True,
    output_dir: options.OutputDirOption = None,
) -> None:
    """Repeat a failed, cancelled or lost run with the same code, data and parameters."""
    from runner.flows.submit.repeat import retry_run

    if failed is (run is not None) or (experiment and not failed):
        raise RunnerError(
            "R-RETRY-WHICH",
            "expected one run or --failed",
            why="--experiment requires --failed" if experiment else "both or neither were given",
            fix="runner retry @last",
        )
    out = call.out
    settings, connection = call.open(output_dir=output_dir)
    if run is None:
        consent = to_consent(out, send_env, "runner retry {run}")
        changes = {"keep_node": keep_node, "notify": notify}
        _retry_all(out, connection, experiment, pool, consent, changes)
        return
    spec = _find_run(connection, run)
    consent = to_consent(out, send_env, f"runner retry {spec.run_id}")
    _note_kept_node(out, connection, spec)
    again = partial(
        retry_run, connection, spec, pool, consent=consent, keep_node=keep_node, notify=notify
    )
    folder = settings.output_dir if download else None
    _repeat(out, connection, again, detach=detach, output_dir=folder)


def _note_kept_node(out: Output, connection: Connection, spec: RunSpec) -> None:
    """Say that the run keeps its node, which its repetition cannot use meanwhile."""
    if spec.keep_node_s:
        from runner.flows.runs.documents import load_result, runs_container

        result = load_result(runs_container(connection), spec.run_id)
        note_kept_node(out, connection, spec, result)


def _find_run(connection: Connection, reference: str) -> RunSpec:
    """Return the run. Raise R-RETRY-GROUP if the reference names a sweep or group."""
    from runner.flows.runs.group_documents import find_run_or_group
    from runner.flows.runs.history import list_runs
    from runner.protocol.run_spec import RunSpec

    found = find_run_or_group(connection, reference)
    if isinstance(found, RunSpec):
        return found
    ids = () if found.trials else tuple(found.runs.values())
    rows = list_runs(connection, limit=None, ids=ids).rows
    experiment = next((row.spec.experiment for row in rows if row.spec), found.name)
    raise RunnerError(
        "R-RETRY-GROUP",
        f"{found.group_id} is a {'sweep' if found.trials else 'group of runs'}, not a run",
        why="this command repeats a single run",
        fix=f"runner sweep resume {found.group_id}"
        if found.trials
        else f"runner retry --failed --experiment {experiment}",
    )


def _retry_all(
    out: Output,
    connection: Connection,
    experiment: str | None,
    pool: str | None,
    consent: Consent,
    changes: Mapping[str, str | None],
) -> None:
    from runner.flows.submit.repeat import list_to_retry, retry_each

    found = list_to_retry(connection, experiment)
    rows: list[dict[str, str]] = []
    problems: list[RunnerError] = []
    for row, again in retry_each(connection, found, pool, ignore_progress, consent, **changes):
        if isinstance(again, RunnerError):
            problems.append(again)
            out.warning(f"{row.run_id}: {again.what}")
        else:
            rows.append({"run_id": again.run_id, "retry_of": row.run_id, "pool": again.pool})
    out.rows(rows, _COLUMNS, empty="no failed runs to retry")
    if problems:
        raise problems[0]


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="Parameter to change; can be repeated."),
]
CheckpointOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint", metavar="N", help="Number of the checkpoint.", show_default="the newest"
    ),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Start from the beginning, without a checkpoint.")
]
NodesOption = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        metavar="N",
        min=1,
        help="Number of nodes that the run uses at once.",
        show_default="as before",
    ),
]


@options.on_target
def resume(
    call: options.Invocation,
    run: options.RunArgument,
    set_: SetOption = None,
    checkpoint: CheckpointOption = None,
    fresh: FreshOption = False,
    nodes: NodesOption = None,
    pool: OtherPoolOption = None,
    keep_node: KeepNodeOption = None,
    notify: NotifyOption = None,
    send_env: SendEnvOption = None,
    detach: options.DetachOption = False,
    download: options.DownloadOption = True,
    output_dir: options.OutputDirOption = None,
) -> None:
    """Resume an ended run from its newest complete checkpoint, as a new run."""
    from runner.flows.submit.repeat import resume_run

    out = call.out
    settings, connection = call.open(output_dir=output_dir)
    spec = _find_run(connection, run)
    consent = to_consent(out, send_env, f"runner resume {spec.run_id}")
    _note_kept_node(out, connection, spec)
    again = partial(
        resume_run, connection, spec, pool, tuple(set_ or ()),
        number=checkpoint, nodes=nodes, fresh=fresh, consent=consent, keep_node=keep_node,
        notify=notify,
    )  # fmt: skip
    folder = settings.output_dir if download else None
    _repeat(out, connection, again, detach=detach, output_dir=folder)
