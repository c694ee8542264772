"""The exported data of a run, before any tool reads it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.core.points import StepCounter, final_points
from runner.features.export.mlflow import _address, _name, _where, _without_password, lineage
from runner.features.export.tensorboard import _append, _single
from runner.flows.extras import load_extra
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import parse_result
from runner.protocol.run_spec import parse_run


def point(name: str, step: int | None, value: float, attempt: int = 1) -> MetricPoint:
    return MetricPoint("2026-11-21T15:00:00+00:00", attempt, step, name, value)


def test_repeated_steps_are_those_of_the_later_attempt() -> None:
    first = [point("loss", step, step, 1) for step in (1, 2, 3, 4)]
    second = [point("loss", step, -step, 2) for step in (3, 4, 5)]
    shown = [(each.step, each.value) for each in final_points([*first, *second])]
    assert shown == [(1, 1), (2, 2), (3, -3), (4, -4), (5, -5)]


def test_values_without_steps_are_numbered_within_an_attempt() -> None:
    points = [point("a", None, 1), point("b", None, 2), point("a", None, 3), point("c", 7, 4)]
    shown = [(p.name, p.step, p.value) for p in final_points([*points, point("c", 7, 5)])]
    assert shown == [("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("c", 7, 4), ("c", 7, 5)]


def test_time_is_in_epoch_seconds_even_without_a_zone() -> None:
    times = ("1970-01-01T01:00:00+01:00", "1970-01-01T00:00:07", "nonsense")
    counter = StepCounter()
    found = [counter.point(MetricPoint(time, 1, 1, "x", 0.0)).time_s for time in times]
    assert found == [0.0, 7.0, 0.0]


def test_lineage_is_flat_text_without_unknown_values() -> None:
    document = {
        "format": 1,
        "run_id": "r-1",
        "experiment": "e",
        "created": "2026-11-21T15:00:00+00:00",
        "recipe": {"name": "mnist"},
        "code": {"sha256": "c0de", "git_revision": None, "git_dirty": False},
        "data": None,
        "params": {},
        "resume_from": {"run_id": "r-0", "checkpoint": None},
        "inputs": {"x": {"url": "https://a.blob/c/f?sv=1&sig=hush", "sha256": None}},
        "command": ["get", "http://h/f?token=hush"],
        "batch": {"pool": "p", "vm_size": "v", "spot": True, "job_id": "j", "task_id": "t"},
    }
    spec = parse_run(json.dumps(document).encode(), "r-1")
    result = {
        "format": 1,
        "run_id": "r-1",
        "status": "failed",
        "code": "Timeout",
        "message": "late",
    }
    found = lineage(spec, parse_result(json.dumps(result).encode(), "r-1"))
    assert found["code.sha256"] == "c0de"
    assert found["spot"] == "true"
    assert found["failure"] == "Timeout: late"
    assert json.loads(found["resume_from"]) == {"run_id": "r-0", "checkpoint": None}
    assert not {"code.git_revision", "data", "image", "outputs"} & set(found)
    assert all(isinstance(value, str) for value in found.values())
    assert "hush" not in str(found)
    assert json.loads(found["inputs"])["x"]["url"] == "https://a.blob/c/f"


def test_event_file_is_appended_or_restarted_if_it_shrank(tmp_path: Path) -> None:
    target, asked = tmp_path / "a" / "file", []

    def read(data: bytes) -> None:
        def range_of(begin: int, end: int) -> bytes:
            asked.append((begin, end))
            return data[begin:end]

        _append(target, len(data), range_of)
        assert target.read_bytes() == data

    for data in (b"one", b"one two", b"one two", b"new"):
        read(data)
    assert asked == [(0, 3), (3, 7), (7, 7), (0, 3)]


def test_urls_and_names_are_valid_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunnerError) as caught:
        _address(None)
    assert caught.value.code == "R-EXPORT-URI"
    assert _address("runs") == (tmp_path / "runs").as_uri()
    for address in ("http://a:1", "sqlite:///x.db", "databricks", "file:/x"):
        assert _address(address) == address
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://env")
    assert _address(None) == "http://env"
    assert _name("top-5 acc/λ@2:x") == "top-5 acc/λ_2_x"
    assert _without_password("http://ann:secret@host:5000/x") == "http://host:5000/x"
    info = SimpleNamespace(experiment_id="4", run_id="abc")
    assert (
        _where("http://ann:secret@host:5000/", info) == "http://host:5000/#/experiments/4/runs/abc"
    )
    assert _where("file:///runs", info) == "file:///runs"
    assert _where("sqlite:////tmp/ml.db", info) == "sqlite:////tmp/ml.db", "as it works"


def test_numbers_too_large_for_an_event_file_become_infinite() -> None:
    assert [_single(value) for value in (1e300, -1e300, 0.5)] == [float("inf"), -float("inf"), 0.5]


def test_broken_and_missing_packages_have_different_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_extra.py").write_text("import no_such_thing_inside")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunnerError) as broken:
        load_extra("mlflow", "broken_extra")
    assert "cannot import" in broken.value.what
    assert "no_such_thing_inside" in broken.value.why
    with pytest.raises(RunnerError) as missing:
        load_extra("tensorboard", "no_such_thing_inside.sub")
    assert missing.value.what == "no_such_thing_inside is not installed"
    assert missing.value.fix.endswith("pip install 'azure-batch-runner[tensorboard]'")
