"""Templates, and what they may call: formats of times, sizes, durations, money, and links.

Jinja escapes every value. A name, a log line or an error of somebody else is text on every page.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape

from runner.core.units import format_age, format_count, format_duration, format_size
from runner.page.charts.bars import draw_columns, draw_waterfall
from runner.page.charts.gantt import draw_gantt
from runner.page.charts.lines import draw_lines
from runner.page.charts.nodes import draw_node_map, draw_nodes
from runner.page.charts.panels import run_classes
from runner.page.charts.sparklines import draw_spark, main_points
from runner.page.charts.trials import draw_curves, draw_history, draw_parallel
from runner.page.plain_text import plain
from runner.protocol.host import format_usd
from runner.protocol.metrics import format_metric

FOLDER = Path(__file__).parent
_NONE = "-"
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@cache
def templates() -> jinja2.Environment:
    """Return the environment of all templates."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Callable[..., Any]] = {
        "age": _age,
        "count_of": format_count,
        "duration": _duration,
        "size": _size,
        "metric": _metric,
        "millis": _millis,
        "moment": moment,
        "usd": format_dollars,
        "path": _path,
        "shell": shlex.join,
        "plain": plain,
        "marked": marked,
    }
    found.filters.update(filters)
    functions: dict[str, Any] = {
        "with_query": with_query,
        "lines_chart": draw_lines,
        "gantt_chart": draw_gantt,
        "spark": draw_spark,
        "run_classes": run_classes,
        "main_points": main_points,
        "columns_chart": draw_columns,
        "waterfall_chart": draw_waterfall,
        "nodes_chart": draw_nodes,
        "node_map": draw_node_map,
        "parallel_chart": draw_parallel,
        "history_chart": draw_history,
        "trials_chart": draw_curves,
    }
    cast("dict[str, Any]", found.globals).update(functions)
    return found


def render(template: str, block: str | None, context: Mapping[str, Any]) -> str:
    """Return a page, or one block of its template for an update."""
    found = templates().get_template(template)
    if block is None:
        return _without_controls(found.render(context))
    return _without_controls("".join(found.blocks[block](found.new_context(dict(context)))))


def _without_controls(html: str) -> str:
    """Return a page without what a name of somebody else may do to a terminal, or to other text.

    Carriage returns stay: browsers send them in the lines of a form.
    """
    return _UNSEEN.sub("\ufffd", html)  # no sequences: the end of one may be far away


def render_update(template: str, context: Mapping[str, Any]) -> str:
    """Return the blocks of a page that an update replaces: `view`, and `rest` if it has one.

    What is between the two stays as it is, such as a log with a stream of its own.
    """
    view = render(template, "view", context)
    if "rest" not in templates().get_template(template).blocks:
        return view
    rest = render(template, "rest", context)
    return f'{view}<div id="rest" hx-swap-oob="innerMorph">{rest}</div>'


def with_query(address: str, query: Mapping[str, Any], **changes: Any) -> str:
    """Return an address with a query in which some values are changed; None removes one."""
    pairs = {**query, **changes}
    text = urlencode({k: v for k, v in pairs.items() if v not in (None, "", [])}, doseq=True)
    return f"{address}?{text}" if text else address


def moment(value: datetime | str | None, *, short: bool = False) -> Markup:
    """Return a `time` element in UTC, which a script shows in the zone of the reader."""
    if not value:
        return escape(_NONE)
    at = _parse_time(value)
    if at is None:
        return escape(plain(str(value)))
    return Markup('<time datetime="{}" title="{} UTC"{}>{} UTC</time>').format(
        at.isoformat(timespec="seconds"),
        at.strftime("%Y-%m-%d %H:%M:%S"),
        Markup(" data-short") if short else "",
        at.strftime("%H:%M:%S" if short else "%Y-%m-%d %H:%M:%S"),
    )


def _parse_time(value: datetime | str) -> datetime | None:
    """Return a time in UTC; None for a text of a damaged document, which is shown as it is."""
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_dollars(micro: float | None) -> str:
    """Return `$1.23` for micro-dollars."""
    return format_usd(micro, symbol=True)


def _millis(value: int | None) -> Markup:
    """Return milliseconds since 1970 as a `time` element."""
    return moment(None if value is None else datetime.fromtimestamp(value / 1000, UTC))


def _duration(seconds: float | None) -> str:
    return _NONE if seconds is None else format_duration(seconds)


def _size(count: int | None) -> str:
    return _NONE if count is None else format_size(count)


def marked(line: str, text: str) -> Markup:
    """Return a line as `plain` does, with all occurrences of a searched text marked."""
    shown = plain(line)
    if not text:
        return escape(shown)
    pieces = re.split(f"({re.escape(text)})", shown, flags=re.ASCII | re.IGNORECASE)
    return Markup("").join(
        Markup("<mark>{}</mark>").format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    )


def _path(text: str) -> str:
    """Return a text as one part of a path."""
    return quote(str(text), safe="")


def _metric(value: float | None) -> str:
    if value is None:
        return _NONE
    return str(value) if not math.isfinite(value) else format_metric(value)


def _age(value: datetime | str | None) -> Markup:
    """Return how long ago something was, with its time on hover."""
    if not value:
        return escape(_NONE)
    at = _parse_time(value)
    if at is None:
        return escape(plain(str(value)))
    text = format_age(max(datetime.now(UTC) - at, at - at))
    return Markup('<time datetime="{}" title="{} UTC" data-age>{}</time>').format(
        at.isoformat(timespec="seconds"),
        at.strftime("%Y-%m-%d %H:%M:%S"),
        escape(text),
    )
