"""`runner ps`: list runs."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_experiment, complete_group, complete_state
from runner.cli.options import Invocation, on_target
from runner.cli.ui.output import TABLE_PART, Output
from runner.core.units import format_age, format_count, format_duration, parse_since
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.states import RunStatus
    from runner.flows.runs.history import GroupedHistory, RunHistory, SweepLine
    from runner.flows.runs.rows import RunRow

_TEXT_COLUMNS = (
    "run", "recipe", "experiment", "status", "attempt", "pool", "age", "duration", "metric",
    "error",
)  # fmt: skip
_COLUMNS = (
    "run_id", "state", "recipe", "pool", "created", "took_s", "metric", "reason", "experiment",
    "attempts", "evicted",
)  # fmt: skip
_MORE_KEYS = ("cause", "ended", "metrics", "params", "origin", "group")  # columns of -o json
_SPARE = ("recipe", "pool", "experiment", "duration", "attempt", "age", "metric", "error")
_WATCH_S = 2.0
_REASON_WIDTH = 60
_FAILED = ("failed", "lost")  # values of RunState, which is imported later
_TRIALS_NOTE = "each trial of the sweeps: runner ps --trials, or runner sweep show SWEEP"
_CLEAR = "\x1b[H\x1b[2J"

AllOption = Annotated[bool, typer.Option("--all", "-a", help="List every run.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of runs.")]
ExperimentOption = Annotated[
    str | None,
    typer.Option(
        "--experiment",
        "-e",
        help="Only runs of this experiment.",
        show_default=False,
        autocompletion=complete_experiment,
    ),
]
StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        help="Only runs in these states, for example failed,lost.",
        show_default=False,
        autocompletion=complete_state,
    ),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", help="Only runs submitted since then: 7d, 12h, or a date.")
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Only runs of this group.",
        show_default=False,
        autocompletion=complete_group,
    ),
]
SortOption = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="METRIC",
        help="Sort by the last value of a metric, best first; -METRIC sorts the largest first.",
    ),
]
ReverseOption = Annotated[bool, typer.Option("--reverse", help="Reverse the order.")]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME",
        help="Show a parameter, or an argument of the script; can be repeated.",
    ),
]
TrialsOption = Annotated[
    bool, typer.Option("--trials", help="List each trial of a sweep instead of one line for all.")
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds.")]


@on_target
def ps(
    call: Invocation,
    all_: AllOption = False,
    limit: LimitOption = 20,
    experiment: ExperimentOption = None,
    status: StatusOption = None,
    since: SinceOption = None,
    group: GroupOption = None,
    sort: SortOption = None,
    reverse: ReverseOption = False,
    param: ParamOption = None,
    trials: TrialsOption = False,
    watch: WatchOption = False,
) -> None:
    """List runs, newest first, or sorted by a metric. A sweep is one line.

    With --trials, --group, --status, --param or --sort, its trials are listed one by one.
    """
    from runner.core.states import parse_states
    from runner.flows.runs.group_documents import find_group
    from runner.flows.runs.history import (
        EVERY_RUN,
        RunFilter,
        iterate_grouped,
        iterate_runs,
        list_grouped,
        list_runs,
        with_commands,
    )
    from runner.flows.sweeps.ranking import MetricOrder, list_ranked

    out = call.out
    after = None if since is None else parse_since(since, datetime.now(UTC))
    only = RunFilter(experiment, parse_states(status or ()), after)
    if watch and not out.as_text:
        raise RunnerError(
            "R-WATCH-FORMAT",
            f"--watch cannot print {out.format.value}",
            why="--watch prints a table every two seconds, but programs expect one document",
            fix=f"runner ps -o {out.format.value}",
        )
    connection = call.connect()
    ids = None if group is None else list(find_group(connection, group).runs.values())
    most = None if all_ or ids else limit
    names = [name for text in param or () for name in text.split(",") if name]

    is_grouped = out.as_text and not (trials or ids or status or sort or names)

    def read() -> RunHistory | GroupedHistory:
        if is_grouped:
            grouped = list_grouped(connection, limit=most, only=only)
            return dataclasses.replace(grouped, lines=grouped.lines[::-1]) if reverse else grouped
        if sort is None:
            found = list_runs(connection, limit=most, only=only, ids=ids)
            found = dataclasses.replace(found, rows=found.rows[::-1]) if reverse else found
        else:
            order = MetricOrder.parse(sort, reverse=reverse)
            found = list_ranked(connection, order, limit=most, only=only, ids=ids)
        return with_commands(connection, found) if names or not out.as_text else found

    extra = _Extra(None if sort is None else sort.lstrip("+-"), names)
    show = functools.partial(_show, out, extra=extra, is_filtered=only != EVERY_RUN)
    if most is None and not (ids or sort or names or reverse or watch):
        lines = iterate_grouped(connection, only) if is_grouped else iterate_runs(connection, only)
        _show_all(out, connection, lines, is_filtered=only != EVERY_RUN)
        return
    if watch:
        _watch(out, read, show)
    show(read())


@dataclass(frozen=True, slots=True)
class _Extra:
    """The additional columns of a run list: a metric and parameters."""

    metric: str | None
    params: Sequence[str]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns; the name of another column gets a prefix."""
        taken = (*_TEXT_COLUMNS, *_COLUMNS, *_MORE_KEYS)
        metric = [self.metric] if self.metric is not None else []
        return (
            *(f"metrics.{name}" if name in taken else name for name in metric),
            *(f"params.{name}" if name in (*taken, *metric) else name for name in self.params),
        )

    def values(self, row: RunRow, *, as_text: bool) -> dict[str, Any]:
        """Return the values of a run by column."""
        from runner.protocol.commands import get_parameter

        found = [get_parameter(row.params, name) for name in self.params]
        if self.metric is not None:
            value = row.metrics.get(self.metric)
            shown = format_metric(value) if as_text and value is not None else value
            found = [shown, *found]
        return dict(zip(self.columns, found, strict=True))

    def check(self, rows: Sequence[RunRow]) -> None:
        """Raise RunnerError if no listed run has the parameter."""
        from runner.protocol.commands import get_parameter

        params = [row.params for row in rows] if self.params else []
        for name in self.params:
            if params and all(get_parameter(each, name) is None for each in params):
                from runner.core.yaml_files import did_you_mean

                known = sorted({name for each in params for name in each})
                named = f"parameters: {', '.join(known)}"
                raise RunnerError(
                    "R-PARAM-UNKNOWN",
                    f"no listed run has a parameter {name!r}",
                    why=named if known else "the listed runs have no parameters",
                    fix=did_you_mean(name, known) or "use one of these, or remove --param",
                )


def _watch(
    out: Output,
    read: Callable[[], RunHistory | GroupedHistory],
    show: Callable[[RunHistory | GroupedHistory], None],
) -> None:
    """Print the table every two seconds until Ctrl-C, which exits with 0."""
    try:
        while True:
            history = read()
            if sys.stdout.isatty():
                out.text(_CLEAR + f"{datetime.now().astimezone():%H:%M:%S}, press Ctrl-C to stop")
            show(history)
            sys.stdout.flush()
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _show(
    out: Output, history: RunHistory | GroupedHistory, *, extra: _Extra, is_filtered: bool
) -> None:
    from runner.flows.runs.history import RunHistory, SweepLine
    from runner.views.runs import run_line

    as_text = out.as_text
    if isinstance(history, RunHistory):
        extra.check(history.rows)
        rows = [
            {**(_text_row(row) if as_text else run_line(row)), **extra.values(row, as_text=as_text)}
            for row in history.rows
        ]
    else:
        rows = [_line_row(line) for line in history.lines]
    names = filled(rows)
    if extra.metric is not None:
        names = tuple(name for name in names if name != "metric")
    columns = (*names[:1], *extra.columns, *names[1:]) if as_text else (*_COLUMNS, *extra.columns)
    out.rows(rows, columns, empty=_empty(is_filtered=is_filtered), spare=_SPARE)
    if history.older and as_text:
        older = format_count(history.older, "more run" if extra.metric else "older run")
        out.note(f"{'more than ' if history.has_more else ''}{older}: runner ps -a")
    if not isinstance(history, RunHistory) and any(
        isinstance(line, SweepLine) for line in history.lines
    ):
        out.note(_TRIALS_NOTE)


def _show_all(
    out: Output,
    connection: Connection,
    lines: Iterator[RunRow] | Iterator[RunRow | SweepLine],
    *,
    is_filtered: bool,
) -> None:
    """Print every run, of which few are in memory at a time."""
    from runner.flows.runs.history import RunHistory, SweepLine, with_commands
    from runner.views.runs import run_line

    has_sweep = False

    def texts() -> Iterator[dict[str, Any]]:
        nonlocal has_sweep
        for line in lines:
            has_sweep |= isinstance(line, SweepLine)
            yield _line_row(line)

    def documents() -> Iterator[dict[str, Any]]:
        while chunk := list(islice(lines, TABLE_PART)):
            rows = tuple(line for line in chunk if not isinstance(line, SweepLine))
            for row in with_commands(connection, RunHistory(rows, 0)).rows:
                yield {**run_line(row)}

    if not out.as_text:
        out.rows(documents(), _COLUMNS)
        return
    rows = texts()
    first = list(islice(rows, TABLE_PART))
    # A later part may have values in any column.
    columns = filled(first) if len(first) < TABLE_PART else _TEXT_COLUMNS
    empty = _empty(is_filtered=is_filtered)
    out.rows(chain(first, rows), columns, empty=empty, spare=_SPARE)
    if has_sweep:
        out.note(_TRIALS_NOTE)


def _empty(*, is_filtered: bool) -> str:
    if is_filtered:
        return "no matching runs; to list all: runner ps -a"
    return "no runs; to start one: runner train mnist"


def _line_row(line: RunRow | SweepLine) -> dict[str, Any]:
    from runner.flows.runs.history import SweepLine

    return _sweep_row(line) if isinstance(line, SweepLine) else _text_row(line)


def filled(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the columns that have a value in any row, so that most tables fit 80 characters."""
    return tuple(name for name in _TEXT_COLUMNS if any(row.get(name) for row in rows))


def _text_row(row: RunRow) -> dict[str, Any]:
    spec, status = row.spec, row.status
    ended, reason = row.is_over, row.reason
    state = status.label if status else "unreadable"
    if row.kept is not None:
        state = f"{state}; node kept {row.kept.describe(datetime.now(UTC))}"
    name = row.shown_metric
    took = row.took_s
    return {
        "run": row.run_id,
        "recipe": spec.recipe if spec else "",
        "experiment": spec.experiment if spec and spec.experiment != spec.recipe else "",
        "status": state if ended or not reason else f"{state}: {_short(_waits(status) or reason)}",
        "attempt": f"{row.attempts} ({row.evicted} evicted)" if row.evicted else row.attempts or "",
        "pool": spec.pool if spec else "",
        "age": format_age(datetime.now(UTC) - spec.created) if spec else "",
        "duration": "" if took is None else format_duration(took),
        "metric": "" if name is None else f"{name} {format_metric(row.metrics[name])}",
        "error": _short(row.failure) if ended and row.state != "succeeded" else "",
    }


def _sweep_row(line: SweepLine) -> dict[str, Any]:
    from runner.flows.runs.rows import by_failure
    from runner.flows.sweeps.ranking import MetricOrder, compared_metric, rank

    specs = [row.spec for row in line.rows if row.spec]
    states = ", ".join(f"{count} {state}" for state, count in line.states.items())
    attempts, evicted = (
        sum(getattr(row, name) or 0 for row in line.rows) for name in ("attempts", "evicted")
    )
    waits = (row.status.cause for row in line.rows if row.status and row.status.stuck)
    stuck = next((f": {each.message}" for each in waits if each and each.label == "stuck"), "")
    found: dict[str, Any] = {
        "run": line.group_id,
        "status": f"{states}{_short(stuck)}"
        if states
        else format_count(len(line.run_ids), "trial"),
        "attempt": f"{attempts} ({evicted} evicted)" if evicted and not line.counted else "",
    }
    if specs:
        age = datetime.now(UTC) - min(spec.created for spec in specs)
        own = specs[0].experiment
        found |= {
            "recipe": specs[0].recipe,
            "experiment": own if own != specs[0].recipe else "",
            "pool": ", ".join(sorted({spec.pool for spec in specs})),
            "age": format_age(age),
        }
    name = compared_metric(line.rows)
    if name is not None and not line.counted:  # otherwise, the best may not have been read
        best = rank(line.rows, MetricOrder(name))[0]
        found["metric"] = f"{name} {format_metric(best.metrics[name])}"
    causes = by_failure(row for row in line.rows if row.state in _FAILED)
    others = f" (and {format_count(len(causes) - 1, 'other cause')})" if len(causes) > 1 else ""
    found["error"] = _short(next(iter(causes), ""), others)
    return found


def _waits(status: RunStatus | None) -> str:
    """Return the command that ends a pause, or an empty string."""
    return status.cause.fix if status and status.cause and status.label == "paused" else ""


def _short(reason: str, more: str = "") -> str:
    """Return the first line with `more` behind it, in about `_REASON_WIDTH` characters."""
    line, most = reason.partition("\n")[0], _REASON_WIDTH - len(more)
    if len(line) <= most:
        return line + more
    begin = line[: most - 1]
    words = begin.rpartition(" ")[0] or begin  # not cut inside a word, unless it is the only one
    return f"{words} …{more}"
