"""`runner why`: the cause of a problem and the next command; `runner events`: what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.autocomplete import complete_run
from runner.cli.options import Invocation, RunArgument, on_target
from runner.cli.ui.output import Output, local_time

if TYPE_CHECKING:
    from runner.core.diagnosis import Diagnosis

_WhyArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN|POOL|NODE",
        help="Run ID, unique prefix, @last, or the ID of a sweep, pool, node or job.",
        autocompletion=complete_run,
    ),
]


@on_target
def why(call: Invocation, subject: _WhyArgument = "@last") -> None:
    """Explain the problem of a run, sweep, pool, node or job: cause, evidence, next command."""
    from runner.flows.runs.diagnose import diagnose

    found = diagnose(call.connect(), subject)
    if call.out.as_text:
        _print(call.out, found)
    else:
        from runner.views.details import diagnosis_document

        call.out.record(diagnosis_document(found))


def _print(out: Output, found: Diagnosis) -> None:
    record = {"state": found.state, "cause": found.cause or "none: nothing is wrong"}
    record["message"] = found.message
    evidence: list[str] = []
    source = ""
    for each in found.evidence:
        at = f"{local_time(each.at)}  " if each.at else ""
        if each.source != source:
            evidence.append(f"{at}{each.source}: {each.text}")
            source = each.source
        else:
            evidence.append(f"  {at}{each.text}")
    record["evidence"] = "\n".join(evidence)
    record["fix"] = found.fix
    record["next"] = found.command
    shown = {name: text for name, text in record.items() if text}
    out.record(shown, title=f"{found.kind} {found.subject}")


_EVENT_COLUMNS = ("at", "source", "event")


@on_target
def events(call: Invocation, run: RunArgument = "@last") -> None:
    """List the events of a run in order of time: job, task, attempts, nodes, pool, evictions."""
    from runner.flows.runs.documents import find_run
    from runner.flows.runs.timeline import load_timeline
    from runner.views.details import event_line

    out, connection = call.out, call.connect()
    found = load_timeline(connection, find_run(connection, run))
    if not out.as_text:
        columns = (*_EVENT_COLUMNS, "attempt", "clock_offset_s")
        out.rows([event_line(each) for each in found], columns)
        return
    rows = [
        {**each.to_json(), "at": local_time(each.at) if each.at else "unknown"} for each in found
    ]
    out.rows(rows, _EVENT_COLUMNS, empty="this run has no events")
    moved = sorted({(each.source, each.offset_s) for each in found if each.offset_s})
    for source, offset_s in moved:
        where = "behind" if offset_s > 0 else "ahead of"
        out.note(
            f"{source}: its clock is {abs(offset_s):.0f} s {where} storage; times are corrected"
        )
