"""Runs side by side as HTML: a table of their metrics and differing parameters, and the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from runner.core.metric_series import Curve
from runner.core.metric_svg import draw_svg
from runner.core.metrics import MetricSummary, format_value


def comparison_html(
    run_ids: Sequence[str],
    summaries: Sequence[Sequence[MetricSummary]],
    params: Mapping[str, Sequence[object]],
    panels: Mapping[str, Sequence[Curve]],
) -> str:
    """One column a run. Everything that runs say is somebody else's text, and escaped."""
    lines = [_line("th", "", [f"<code>{escape(run_id)}</code>" for run_id in run_ids])]
    for name in panels:
        found = [next((s for s in each if s.name == name), None) for each in summaries]
        lines.append(_line("td", name, [_value(summary) for summary in found]))
    for name, values in params.items():
        shown = ["-" if value is None else escape(str(value)) for value in values]
        lines.append(_line("td", name, shown))
    return f"<div><table>{''.join(lines)}</table>{draw_svg(panels) if panels else ''}</div>"


def _line(tag: str, name: str, cells: Sequence[str]) -> str:
    body = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr><th style='text-align:left'>{escape(name)}</th>{body}</tr>"


def _value(summary: MetricSummary | None) -> str:
    if summary is None:
        return "-"
    last, best = format_value(summary.last), summary.best
    shown = f"<b>{escape(last)}</b>"
    if best is None or best == summary.last:
        return shown
    return f"{shown} (best {escape(format_value(best))} at step {summary.best_step})"
