"""HTML for notebooks: runs, tables and records. Texts of runs are escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Generic, TypeVar, cast, overload

from runner.core.units import format_duration
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from runner.api.progress import Update
    from runner.api.run_object import Run


_MAX_FILES = 10
_COLOURS = {
    "succeeded": "#2e7d32",
    "failed": "#c62828",
    "lost": "#c62828",
    "cancelled": "#757575",
    "interrupted": "#757575",
    "running": "#1565c0",
    "done": "#2e7d32",
}


def run_card(run: Run) -> str:
    """Return a run with its state, parameters, metrics and outputs, or with an error."""
    rows = {"state": _state(run), "experiment": escape(run.experiment), "created": _time(run)}
    if run.params:
        rows["params"] = _pairs({name: str(value) for name, value in run.params.items()})
    try:
        metrics = run.metrics()
        if metrics:
            shown = {name: _best(found.last, found.best) for name, found in metrics.items()}
            rows["metrics"] = _pairs(shown)
        files = run.outputs()
    except RunnerError as err:
        rows["problem"] = escape(err.what)
    else:
        if files:
            names = [file.path for file in files[:_MAX_FILES]]
            more = f" and {len(files) - len(names)} more" if len(files) > len(names) else ""
            rows["outputs"] = escape(", ".join(names) + more)
    body = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{value}</td></tr>"
        for name, value in rows.items()
    )
    return f"<div><code>{escape(run.id)}</code><table>{body}</table></div>"


def runs_table(runs: Iterable[Run]) -> str:
    """Return a table of runs."""
    head = "".join(f"<th>{name}</th>" for name in ("run", "state", "experiment", "created"))
    body = "".join(
        f"<tr><td><code>{escape(run.id)}</code></td><td>{_state(run)}</td>"
        f"<td>{escape(run.experiment)}</td><td>{_time(run)}</td></tr>"
        for run in runs
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def group_table(group_id: str, runs: Mapping[str, str], states: Mapping[str, str]) -> str:
    """Return a table of the runs of a group."""
    head = "".join(f"<th>{name}</th>" for name in ("task", "state", "run"))
    body = "".join(
        f"<tr><td>{escape(task)}</td><td>{_coloured(states[task])}</td>"
        f"<td><code>{escape(run_id)}</code></td></tr>"
        for task, run_id in runs.items()
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><code>{escape(group_id)}</code>{table}</div>"


def table(rows: Sequence[Mapping[str, str]], more: int = 0) -> str:
    """Return a table with the columns of the first row; `more` rows are not shown."""
    if not rows:
        return "<div>no rows</div>"
    names = list(rows[0])
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(_cell(name, row.get(name, '')) for name in names)}</tr>" for row in rows
    )
    rest = f"<div>and {more} more</div>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def record(values: Mapping[str, str]) -> str:
    """Return a table of the values that are not empty."""
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>{_cell(name, value)}</tr>"
        for name, value in values.items()
        if value
    )
    return f"<table>{body}</table>"


def live_card(update: Update) -> str:
    """Return a snapshot: a bar if something is counted, metrics, and the last lines."""
    name = escape(update.run_id or update.what or "a new run")
    parts = [f"<div><code>{name}</code> {_coloured(update.state)}"]
    if update.stage:
        parts.append(f" &middot; {escape(update.stage)} {escape(update.message)}")
    if update.total:
        share = max(0.0, min(1.0, (update.done or 0.0) / update.total))
        parts.append(f" <progress value='{share:.3f}' max='1'></progress>")
    parts.append(f" <span style='color:gray'>{format_duration(round(update.elapsed_s))}</span>")
    if update.metrics:
        shown = {name: format_metric(value) for name, value in update.metrics.items()}
        parts.append(f"<div>{_pairs(shown)}</div>")
    if update.lines:
        text = escape("\n".join(update.lines))
        parts.append(f"<pre style='color:gray;margin:0'>{text}</pre>")
    return "".join([*parts, "</div>"])


def to_texts(row: Mapping[str, object]) -> dict[str, str]:
    """Return the values as text."""
    return {name: _text(value) for name, value in row.items()}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value.astimezone():%Y-%m-%d %H:%M}"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return str(value)


def _state(run: Run) -> str:
    try:
        status = run.status
    except RunnerError as err:
        return escape(f"unknown: {err.what}")
    reason = f": {escape(status.reason)}" if status.reason else ""
    return _coloured(status.state.value) + reason


def _coloured(state: str) -> str:
    return f"<b style='color:{_COLOURS.get(state, 'inherit')}'>{escape(state)}</b>"


def _cell(name: str, text: str) -> str:
    shown = _coloured(text) if name == "state" else escape(text)
    return f"<td style='text-align:left'>{shown}</td>"


def _time(run: Run) -> str:
    return f"{run.created.astimezone():%Y-%m-%d %H:%M}"


def _best(last: float, best: float | None) -> str:
    text = format_metric(last)
    return text if best is None or best == last else f"{text} (best {format_metric(best)})"


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in values.items())


T = TypeVar("T")
_MAX_ROWS = 200  # rows; more make a notebook slow


class Table(Sequence[T], Generic[T]):
    """An immutable sequence of rows; `pandas.DataFrame(table)` accepts it.

    `cells` returns the cells of a row for a notebook, by column.
    """

    __slots__ = ("_cells", "_rows")

    def __init__(self, rows: Iterable[T], cells: Callable[[T], Mapping[str, object]]) -> None:
        self._rows = tuple(rows)
        self._cells = cells

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Table[T]: ...
    def __getitem__(self, index: int | slice) -> T | Table[T]:
        if isinstance(index, slice):
            return Table(self._rows[index], self._cells)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table | list | tuple):
            return NotImplemented
        return list(self) == list(cast("Sequence[object]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  as in a list

    def __repr__(self) -> str:
        return repr(list(self._rows))

    def _repr_html_(self) -> str:
        shown = [self._cells(row) for row in self._rows[:_MAX_ROWS]]
        return table([to_texts(row) for row in shown], len(self._rows) - len(shown))
