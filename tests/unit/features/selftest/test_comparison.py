"""Differences between two responses, and their report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.http.routes.table import ROUTES, Matcher
from runner.features.selftest.contract import Answer, Compared, Leftover, compare, shape_of
from runner.features.selftest.report import BillLine, SelftestReport
from runner.features.selftest.scenario import CREATED, scenario
from runner.features.selftest.selftest import reporting


def answer(body: Any = None, status: int = 200, code: str = "", outcome: str = "") -> Answer:
    return Answer("step", outcome, status, code, shape_of(body), body)


def differences(target: Answer, emulator: Answer) -> tuple[str, ...]:
    [found] = compare([target], [emulator])
    return found.differences


def test_shape_has_the_types_of_all_paths_and_no_values() -> None:
    body = {"id": "a", "value": [{"n": 1}, {"n": 2.5, "ok": True}], "none": None, "empty": []}
    assert shape_of(body) == {
        "": "object",
        ".empty": "list",
        ".id": "string",
        ".value": "list",
        ".value[]": "object",
        ".value[].n": "number",
        ".value[].ok": "boolean",
    }


def test_shape_identifies_error_values_by_key() -> None:
    values = [{"key": "Reason", "value": "x"}, {"key": "PropertyName", "value": "y"}]
    assert set(shape_of(values)) >= {"[](Reason).value", "[](PropertyName).value"}


def test_other_values_of_the_same_types_are_equal() -> None:
    assert differences(answer({"id": "a", "n": 1}), answer({"id": "b", "n": 2})) == ()


@pytest.mark.parametrize(
    ("target", "emulator", "expected"),
    [
        (answer(status=409, code="JobExists"), answer(), "409 JobExists, the emulator 200"),
        (
            answer(status=400, code="InvalidRequestBody"),
            answer(status=400, code="InvalidPropertyValue"),
            "400 InvalidRequestBody, the emulator 400 InvalidPropertyValue",
        ),
        (answer({"n": "1"}), answer({"n": 1}), ".n: string, the emulator number"),
        (answer({"a": 1, "b": 1}), answer({"a": 1}), ".b: number, the emulator absent"),
        (answer({}), answer({"c": 1}), ".c: absent, the emulator number"),
        (answer(outcome="timed out: x"), answer({}), "timed out: x, the emulator 200"),
    ],
)  # fmt: skip
def test_difference_names_both_responses(target: Answer, emulator: Answer, expected: str) -> None:
    assert differences(target, emulator) == (expected,)


def test_report_has_only_the_bodies_of_different_responses(tmp_path: Path) -> None:
    equal, other = answer({"id": "hidden"}), answer({"id": "shown", "|": 1})
    found = SelftestReport("azure", 1.5)
    found.steps = compare([equal, other], [equal, equal])
    found.bill.append(BillLine("node", 1800, 0.5))
    found.left.append(Leftover("pool x", "az batch pool delete --pool-id x --yes"))

    page = found.write(tmp_path / "report.json").read_text()

    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["passed"], document["equal"], document["different"]) == (False, 1, 1)
    assert "body" not in document["steps"][0]["target"]
    assert document["steps"][1]["target"]["body"]["id"] == "shown"
    assert document["usd"] == 0.25
    assert "1 of 2 answers equal those of the emulator." in page
    assert ".\\|: number, the emulator absent" in page
    assert "`az batch pool delete --pool-id x --yes`" in page


def test_report_has_a_conformance_page_by_operation_with_a_badge(tmp_path: Path) -> None:
    first, second, skipped = [step for step in scenario() if step.operation == "Pool_Add"][:3]
    steps = [
        Compared(first.name, (), answer(), answer()),
        Compared(second.name, ("404, the emulator 400",), answer(), answer()),
        Compared(skipped.name, ("skipped",), answer(outcome="skipped"), answer()),
    ]
    found = SelftestReport("azure", started=datetime(2026, 1, 2, tzinfo=UTC), steps=steps)
    found.write(tmp_path / "report.json")
    page = (tmp_path / "report-conformance.md").read_text()
    said = f"differs: {second.name}: 404, the emulator 400"
    assert f"| Pool_Add | 2 | {said} | recording of 2026-01-02 |" in page
    assert "| operations | 0 | 1 | 0 | 1 |" in page
    assert "Requests without an answer to compare: 1." in page
    assert "![conformance](report-conformance.svg)" in page
    assert "0 of 1 same" in (tmp_path / "report-conformance.svg").read_text()


def test_steps_name_their_operations() -> None:
    routes = Matcher(ROUTES)
    for step in scenario():
        path = step.path.partition("?")[0].replace(" ", "%20")
        assert routes.find(step.method, path)[0].operation == step.operation


def test_interrupted_test_has_not_passed() -> None:
    found = SelftestReport("local", steps=compare([answer()], [answer()]))
    assert found.passed
    with pytest.raises(KeyboardInterrupt), reporting(found):
        raise KeyboardInterrupt
    assert not found.passed
    assert found.to_json()["problem"].startswith("the self-test was interrupted")


def test_scenario_names_every_step_once_and_deletes_what_it_creates() -> None:
    steps = scenario()
    names = [step.name for step in steps]
    assert len(names) == len(set(names)) >= 60
    posted = {
        name
        for step in steps
        if step.method == "POST" and step.path in ("/pools", "/jobs")
        for _, name, _ in CREATED
        if step.body["id"] == f"{{{name}}}"
    }
    assert posted == {name for _, name, _ in CREATED}
