"""The document of metrics with many values, in pieces: no list of them is ever in memory."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby, islice
from tempfile import TemporaryFile

from runner.azure.auth.credentials import Connection
from runner.flows.runs.metrics import ExactCurves, MetricComparison
from runner.protocol.metrics import json_value
from runner.views.json_text import json_line
from runner.views.runs import metrics_head

_CHUNK = 5000  # values of one piece


def metrics_pieces(connection: Connection, compared: MetricComparison) -> Iterator[str]:
    """Yield the document of `metrics_document` and a line end, for which values are read again."""
    head = json_line(metrics_head(compared))
    yield f'{head[:-1]}, "metrics": {{'
    run_ids = [each.spec.run_id for each in compared.runs]
    with ExitStack() as stack:
        curves = [stack.enter_context(ExactCurves(connection, each)) for each in compared.runs]
        for number, name in enumerate(compared.names):
            yield f'{", " if number else ""}{json.dumps(name, ensure_ascii=False)}: {{"steps": '
            yield from _aligned([each.iterate(name) for each in curves], run_ids)
            yield "}}"
    yield "}}\n"


def _aligned(curves: list[Iterator[tuple[int, float]]], run_ids: list[str]) -> Iterator[str]:
    """Yield the steps of any curve; then the values of each, which are in a file until then."""
    with TemporaryFile("w+", encoding="ascii") as file:
        rows, places = _rows(curves), [list[int]() for _ in curves]
        start = "["
        while chunk := list(islice(rows, _CHUNK)):
            yield start + _array(step for step, _ in chunk)
            for n, places_of_curve in enumerate(places):
                values = (found[n] for _, found in chunk)
                shown = _array(None if value is None else json_value(value) for value in values)
                places_of_curve.append(file.tell())
                file.write(f"{start}{shown}\n")
            start = ", "
        end = "[]" if start == "[" else "]"
        yield f'{end}, "values": {{'
        for n, run_id in enumerate(run_ids):
            yield f"{', ' if n else ''}{json.dumps(run_id)}: "
            for place in places[n]:
                file.seek(place)
                yield file.readline().rstrip("\n")
            yield end


def _array(values: Iterable[float | str | None]) -> str:
    return json.dumps(list(values))[1:-1]


def _rows(curves: list[Iterator[tuple[int, float]]]) -> Iterator[tuple[int, list[float | None]]]:
    """Yield each step of any curve, with the value of each curve or None."""

    def numbered(n: int, curve: Iterator[tuple[int, float]]) -> Iterator[tuple[int, int, float]]:
        return ((step, n, value) for step, value in curve)

    merged = heapq.merge(*(numbered(n, curve) for n, curve in enumerate(curves)))
    for step, found in groupby(merged, key=lambda each: each[0]):
        values: list[float | None] = [None] * len(curves)
        for _, n, value in found:
            values[n] = value
        yield step, values
