"""The metrics of a run with many points: read in one pass, and exact where they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.cli.commands.runs import metrics as verb
from runner.core.curves import align
from runner.flows.runs import documents, metrics
from runner.flows.runs.documents import iterate_points, load_metrics
from runner.flows.runs.metrics import ExactCurves, compare_metrics, load_run_metrics
from runner.protocol.metrics import MetricPoint, json_value, summarize_metrics
from runner.protocol.run_spec import RunSpec
from runner.views.long_metrics import metrics_pieces
from tests.unit.core.test_curves import to_curves

SPEC = RunSpec(run_id="mnist-20261121-143005-k3f9")
_POINTS = st.lists(
    st.tuples(
        st.sampled_from(["loss", "acc"]),
        st.none() | st.integers(0, 20),
        st.floats(allow_nan=True, width=32),
    ),
    max_size=40,
)
Points = list[tuple[str, int | None, float]]


class Container:
    """One file of metrics, which is read in ranges of at most 64 bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read_range(self, blob: str, offset: int, length: int | None) -> bytes:
        assert blob == f"{SPEC.run_id}/metrics.jsonl"
        return self.content[offset : offset + min(length or 64, 64)]


def lines_of(points: Points, attempt: int = 1) -> bytes:
    found = [
        {"time": "", "attempt": attempt, "step": step, "name": name, "value": json_value(value)}
        for name, step, value in points
    ]
    return "".join(f"{json.dumps(one)}\n" for one in found).encode()


def use(content: bytes, patch: pytest.MonkeyPatch) -> None:
    container: Any = Container(content)
    for module in (documents, metrics):
        patch.setattr(module, "runs_container", lambda _: container)


def stored(points: Points) -> list[MetricPoint]:
    return [MetricPoint("", 1, step, name, value) for name, step, value in points]


CONNECTION: Any = None


@settings(deadline=None)
@given(_POINTS)
def test_all_views_of_many_points_equal_those_of_few(points: Points) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use(lines_of(points), patch)
        summaries = summarize_metrics(stored(points), {})
        curves = to_curves(SPEC.run_id, stored(points))
        assert repr(load_metrics(CONNECTION, SPEC)) == repr(summaries)
        few = load_run_metrics(CONNECTION, SPEC)
        assert repr((few.summaries, few.curves)) == repr((tuple(summaries), tuple(curves)))
        many = load_run_metrics(CONNECTION, SPEC, exact_points=0)
        assert repr(many.summaries) == repr(tuple(summaries))
        with ExactCurves(CONNECTION, many) as opened:
            exact = {one.name: tuple(opened.iterate(one.name)) for one in curves}
        assert repr(exact) == repr({one.name: one.points for one in curves})
        last = load_run_metrics(CONNECTION, SPEC, 3, exact_points=0)
        assert repr(last.curves) == repr(tuple(to_curves(SPEC.run_id, stored(points), 3)))


def test_document_in_pieces_has_the_values_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    points: Points = [("loss", n % 7, float(n)) for n in range(20)]
    points.append(("acc", None, float("nan")))
    use(lines_of(points), monkeypatch)
    other = RunSpec(run_id=SPEC.run_id, trial={"name": "1"})
    compared = compare_metrics(CONNECTION, [SPEC, other], exact_points=0)
    text = "".join(metrics_pieces(CONNECTION, compared))
    document = json.loads(text)
    (loss, acc) = to_curves(SPEC.run_id, stored(points))
    assert document["metrics"]["loss"]["steps"] == [step for step, _ in align([loss])]
    assert document["metrics"]["loss"]["values"][SPEC.run_id] == [v for _, v in loss.points]
    assert document["metrics"]["acc"] == {"steps": [1], "values": {SPEC.run_id: ["NaN"]}}
    assert len(acc.points) == 1
    rows = list(verb._points(CONNECTION, compared))  # pyright: ignore[reportPrivateUsage]
    assert [row["step"] for row in rows if row["metric"] == "loss"] == [0, 1, 2, 3, 4, 5, 6] * 2


def test_damaged_and_incomplete_lines_are_skipped() -> None:
    good = lines_of([("loss", 1, 0.5)])
    typed = b'{"name": "loss", "value": "0.25", "step": 2}\n'
    content = b"{torn\n" + good + b"\n\xff\xfe\n[1]\n" + typed + b'{"name": "loss", "val'
    container: Any = Container(content)
    found = list(iterate_points(container, SPEC.run_id))
    assert [(each.step, each.value) for each in found] == [(1, 0.5), (2, 0.25)]
    assert content[found[0].position :].startswith(good)
    whole: Any = Container(good.rstrip(b"\n"))
    assert len(list(iterate_points(whole, SPEC.run_id))) == 1, "without an end of line"


def test_pass_over_many_points_needs_little_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tracemalloc

    container: Any = Container(lines_of([("loss", n, 1 / (n + 1)) for n in range(50_000)]))
    monkeypatch.setattr(container, "read_range", lambda _, at, n: container.content[at : at + n])
    monkeypatch.setattr(metrics, "runs_container", lambda _: container)
    tracemalloc.start()
    found = load_run_metrics(CONNECTION, SPEC, exact_points=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.summaries[0].count == 50_000
    assert len(found.curves[0].points) <= 4096
    assert peak < 30_000_000, "a read of 4 MB, its lines, and the sketch"
