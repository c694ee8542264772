"""The comparison: axes, smoothing, common places, differences, and runs that lack something."""

from __future__ import annotations

import io
import json
import math
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.flows.runs import documents, metrics
from runner.flows.submit import differences
from runner.flows.submit.differences import Differences, load_differences
from runner.page.charts.panels import View, align_traces, draw_panel, draw_panels, to_trace
from runner.page.memory.points import MetricPoints
from runner.page.memory.run_facts import RunFacts
from runner.page.memory.run_table import NodeUse
from runner.protocol.run_spec import RunSpec
from runner.views.json_text import format_json
from runner.views.runs import metrics_document
from tests.unit.page.listed_runs import HOSTILE, HOUR, START_MS, client_with, entry, series

NODES = (NodeUse(START_MS - 2000, None, spot=True),)
RATES = {True: HOUR, False: None}  # a micro-dollar per millisecond
NONE = Differences({}, {}, {})


def facts(*values: float, name: str = "loss") -> RunFacts:
    """Return a run whose node began two seconds before its first value."""
    return RunFacts({name: series(*values, name=name)}, NODES, RATES)


def traced(view: View, *values: float) -> list[tuple[float, float]]:
    known = facts(*values)
    found = to_trace("a", 0, known.series["loss"], known, view)
    return [*zip(found.xs, found.ys, strict=True)]


def test_axis_is_steps_time_since_the_first_node_or_dollars() -> None:
    assert traced(View(), 5, 6) == [(0, 5), (1, 6)]
    assert traced(View("time"), 5, 6) == [(2, 5), (3, 6)]
    assert traced(View("dollars"), 5, 6) == [(0.002, 5), (0.003, 6)]


def test_unknown_price_and_unknown_time_have_no_place() -> None:
    known = RunFacts({}, (NodeUse(START_MS - 2000, None, spot=False),), RATES)
    assert not to_trace("a", 0, series(1, 2), known, View("dollars")).xs
    timeless = MetricPoints("loss", [0.0], [1.0], [math.nan], 1, 1.0, 0, 1.0, 0)
    assert not to_trace("a", 0, timeless, facts(1), View("time")).xs


def test_view_smooths_cuts_and_leaves_out_what_has_no_logarithm() -> None:
    assert traced(View(smooth=0.5), 1, 1, 1) == [(0, 1), (1, 1), (2, 1)]
    assert [round(y, 3) for _, y in traced(View(smooth=0.5), 0, 1)] == [0, 0.667]
    assert traced(View(low=1, high=2), 1, 2, 3, 4) == [(1, 2), (2, 3)]
    assert math.isnan(traced(View(log=True), 0, 1)[0][1])
    assert math.isnan(traced(View(smooth=0.9), 1, math.nan, 1)[1][1])


def test_columns_have_common_places_and_none_where_a_curve_has_no_value() -> None:
    known = {"a": facts(1, 2, 3), "b": facts(5)}
    traces = [to_trace(n, 0, each.series["loss"], each, View()) for n, each in known.items()]
    assert align_traces(traces, 1000) == ([0, 1, 2], [[1, 2, 3], [5, None, None]])
    long = MetricPoints(
        "loss", [*map(float, range(1000))], [2.0 * n for n in range(1000)], [math.nan] * 1000,
        1000, 0.0, 0, 0.0, 0,
    )  # fmt: skip
    places, [column] = align_traces([to_trace("a", 0, long, facts(1), View())], 50)
    assert len(places) == 50
    assert all(
        y is not None and math.isclose(y, 2 * x, rel_tol=1e-3)
        for x, y in zip(places, column, strict=True)
    )


def test_picture_of_500_curves_of_many_points_is_small_and_has_text_as_text() -> None:
    values = [math.sin(n / 9) for n in range(1500)]
    one = MetricPoints(
        HOSTILE, [*map(float, range(1500))], values, [math.nan] * 1500, 1500, 0.0, 0, 0.0, 0
    )
    known = facts(1)
    traces = [to_trace(f"{HOSTILE}{n}", n, one, known, View()) for n in range(500)]
    svg = draw_panel(traces, HOSTILE, View())
    assert svg.count('<path class="curve') == 500
    assert len(svg) < 600_000
    assert "<script" not in svg
    assert "no finite values" in draw_panel([], "none", View("dollars", log=True))


def test_picture_says_where_a_value_is_not_finite_and_where_more_points_are() -> None:
    entries = [entry(1), entry(0)]
    known = {entries[0].run_id: facts(1, 2), entries[1].run_id: facts(1, math.nan, math.inf)}
    [panel] = draw_panels(["loss"], entries, known, View(), lambda name: f"/data/{name}")
    assert (panel.runs, panel.bad, panel.data) == (2, 2, "")
    assert panel.first_bad == f"{entries[1].run_id} at step 1"
    assert "M" in re.findall(r' d="([^"]*)"', panel.chart)[0]


@pytest.mark.parametrize(
    "address",
    [
        "/compare",
        "/compare?run=a&axis=miles",
        "/compare?run=a&smooth=1",
        "/compare?run=a&from=x",
        "/compare?run=a&to=nan",
        "/compare?run=a&rows=0",
        "/compare?experiment=unknown",
    ],
)
def test_invalid_address_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = client_with(tmp_path, monkeypatch, [entry(0)]).get(address)
    assert answered.status_code == 400
    assert "R-PAGE-QUERY" in answered.text


def test_runs_lack_metrics_or_are_read_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry(n, params={"lr": n}) for n in range(3)]
    known = {entries[0].run_id: RunFacts({}), entries[1].run_id: facts(3, 2, 1)}
    answers = {"differences": Differences({"lr": (0, 1, 2)}, {}, {})}
    client = client_with(tmp_path, monkeypatch, entries, known, answers=answers)
    text = client.get("/compare?experiment=first").text
    assert "reading the curves of 1 run" in text
    assert text.count('<path class="curve c1 d0" data-run=') == 1
    found = client.get("/api/v1/compare?experiment=first&smooth=0").json()
    assert (found["complete"], found["names"], found["params"]) == (
        False,
        ["loss"],
        {"lr": [0, 1, 2]},
    )
    assert found["metrics"]["loss"] == {"x": [0, 1, 2], "y": {entries[1].run_id: [3, 2, 1]}}


@pytest.mark.parametrize("exact_points", [0, 100])
def test_document_of_metrics_is_that_of_the_command_line_however_long(
    exact_points: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        {"time": "", "attempt": 1, "step": step, "name": name, "value": value}
        for step, name, value in (
            (1, "loss", 2),
            (2, "loss", "NaN"),
            (1, "größe", 0),
            (2, "acc", 1),
        )
    ]
    content = "".join(f"{json.dumps(each)}\n" for each in lines).encode()
    container = SimpleNamespace(read_range=lambda _, at, length: content[at : at + length])
    for module in (documents, metrics):
        monkeypatch.setattr(module, "runs_container", lambda _: container)
    connection: Any = None
    specs = [RunSpec(run_id=entry(0).run_id)]
    compared = metrics.compare_metrics(connection, specs, exact_points=exact_points)
    assert compared.is_long == (exact_points == 0)
    client = client_with(tmp_path, monkeypatch, [], answers={"api metrics": (connection, compared)})
    found = client.get(f"/api/v1/runs/{entry(0).run_id}/metrics")
    assert found.headers["content-type"] == "application/json"
    whole = metrics_document(compared)
    printed = format_json(whole) if exact_points else json.dumps(found.json(), ensure_ascii=False)
    assert found.text == f"{printed}\n"
    assert found.json()["metrics"]["loss"]["values"] == {specs[0].run_id: [2, "NaN"]}
    assert found.json()["runs"] == json.loads(format_json(whole))["runs"]


def test_many_metrics_runs_and_awkward_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {f"p{n}": HOSTILE for n in range(60)}
    entries = [entry(n, params={**params, "lr": n}) for n in range(40)]
    metrics = {f"{HOSTILE}{n}": series(1, 2, name="loss") for n in range(200)}
    known = {each.run_id: RunFacts(metrics, NODES, RATES) for each in entries}
    client = client_with(tmp_path, monkeypatch, entries, known)
    for address in (
        "/compare?experiment=first", "/compare?experiment=first&q=%3Cscript%3E1&rows=2",
        "/compare?experiment=first&axis=dollars&log=1&vm_size=a&region=b&metric=none",
    ):  # fmt: skip
        answered = client.get(address)
        assert answered.status_code == 200
        assert "<script>alert" not in answered.text
        assert not re.search(r"<[^>]* (style|on[a-z]+)=", answered.text)
    assert "compared for at most 30 runs" in client.get("/compare?experiment=first").text


def archive(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def compared(
    monkeypatch: pytest.MonkeyPatch, *archives: bytes | None, environments: Any = ({}, {})
) -> Differences:
    """Return what differs between runs with these archives."""
    specs = {
        f"r{n}": SimpleNamespace(
            run_id=f"r{n}", all_params={"lr": n, "same": 1}, recipe="mnist", command=["python"],
            code=SimpleNamespace(
                sha256=f"{n}" * 64, size_bytes=9, blob=f"code/{n}", git_revision="a",
                git_dirty=n == 1,
            ),
        )
        for n in range(len(archives))
    }  # fmt: skip
    store = SimpleNamespace(read=lambda blob: archives[int(blob.removeprefix("code/"))])
    monkeypatch.setattr(differences, "find_run", lambda _, run_id: specs[run_id])
    monkeypatch.setattr(differences, "runs_container", lambda _: store)
    monkeypatch.setattr(
        differences, "load_environment", lambda _, spec: environments[int(spec.run_id[1:])]
    )
    connection: Any = SimpleNamespace(outputs=SimpleNamespace(container_code=None))
    return load_differences(connection, [*specs])


def test_differences_of_parameters_packages_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(
        monkeypatch,
        archive({"same.py": b"1\n", "train.py": b"a\nb\n", "picture": b"\0a"}),
        archive({"same.py": b"1\n", "train.py": b"a\nc\n", "picture": b"\0b", "new.py": b""}),
        environments=(
            {"python": "3.11", "packages": {"torch": "1", "numpy": "2"}},
            {"python": "3.12", "packages": {"torch": "1"}},
        ),
    )
    assert found.params == {"lr": (0, 1)}
    assert found.environment == {"python": ("3.11", "3.12"), "numpy": ("2", None)}
    assert found.code["uncommitted changes"] == (None, "yes")
    assert "git revision" not in found.code
    by_path = {each.path: each for each in found.files}
    assert by_path.keys() == {"train.py", "picture", "new.py"}
    assert by_path["train.py"].lines[-3:] == (" a", "-b", "+c")
    assert by_path["picture"].lines == ()
    assert by_path["new.py"].hashes[0] is None


@pytest.mark.parametrize(
    "damaged",
    [None, b"", b"no archive", archive({"a": b"1"})[:20]],
    ids=["missing", "empty", "text", "half"],  # an archive has the time of the test
)
def test_code_that_cannot_be_read_is_said_so(
    damaged: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compared(monkeypatch, archive({"a": b"1"}), damaged)
    assert found.unread
    assert found.files == ()


def test_archive_that_unpacks_to_very_much_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "_MOST_UNPACKED", 100_000)
    found = compared(monkeypatch, archive({"a": b"1"}), archive({"a": b"\0" * 200_000}))
    assert found.unread
