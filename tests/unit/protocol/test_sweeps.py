"""What trials of a sweep report, and `trial` of run.json."""

from __future__ import annotations

import math

from runner.protocol.sweeps import (
    MAX_POINTS,
    Point,
    StopRule,
    TrialReport,
    TrialSpec,
    TrialState,
    with_point,
)


def curve(*values: float) -> tuple[Point, ...]:
    return tuple(enumerate(values, start=1))


def report(
    name: str, *values: float, state: TrialState = "succeeded", message: str = ""
) -> TrialReport:
    return TrialReport(name, int(name), f"net-{name}", state, {"lr": 0.1}, curve(*values), message)


def test_continued_trial_replaces_the_values_after_its_checkpoint() -> None:
    before = curve(0.1, 0.2, 0.3)
    assert with_point(before, 2, 0.25) == ((1, 0.1), (2, 0.25))
    assert with_point(before, None, 0.4) == (*before, (4, 0.4))


def test_report_survives_writing_and_reading_and_fits_into_metadata() -> None:
    long = report("0007", *(math.sin(n) * 1e-7 for n in range(5000)), message="ü x" * 500)
    metadata = long.to_metadata()
    assert sum(map(len, metadata.values())) < 7000
    assert " " not in metadata["report"]
    found = TrialReport.parse("sweeps/net/trials/0007", metadata)
    assert found is not None
    assert (found.name, found.number, len(found.curve)) == ("0007", 7, MAX_POINTS)
    assert found.curve[-1][0] == 5000
    nan = TrialReport.parse("x/1", report("1", math.nan).to_metadata())
    assert nan is not None
    assert nan.value is not None
    assert math.isnan(nan.value)
    assert TrialReport.parse("x/1", {"report": "{"}) is None


def test_trial_survives_writing_and_reading() -> None:
    trial = TrialSpec(
        "03", 3, {"lr": 0.1}, "loss", "min", StopRule("halving", factor=4), "tpe", False, 9,
        ({"names": ["lr"], "kind": "uniform", "low": 0, "high": 1, "when": []},), {"lr": 0.5},
    )  # fmt: skip
    assert TrialSpec.from_json(trial.to_json()) == trial
    plain = TrialSpec("1", 1, {"lr": 0.1})
    assert TrialSpec.from_json(plain.to_json()) == plain
    assert not plain.needs_metric
