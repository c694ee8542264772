"""The report of a qualification: what it says, and that its page fits A4."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from runner.azure.auth.credentials import Connection
from runner.core.progress import ignore_progress
from runner.features.qualify import made
from runner.features.qualify.criteria import LOCAL_BOUNDS, ROWS
from runner.features.qualify.report import QualificationReport
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.errors import RunnerError
from tests.unit.features.qualify.test_judgement import Documents


def report() -> QualificationReport:
    outputs = local_outputs(LocalState(1, 2, nodes=1, slots=1))
    [pool] = outputs.pools
    found = QualificationReport("local", 2, LOCAL_BOUNDS, outputs, pool, pool)
    found.evidence = Documents().evidence()
    found.ended = found.started + timedelta(seconds=66)
    return found


class Text(HTMLParser):
    """Collects the text and the URLs of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.urls = "", list[str]()
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "href") if tag != "a" else ("src",)
        self.urls += [value or "" for name, value in attrs if name in names]


def test_report_passes_only_if_all_rows_pass_and_nothing_is_left() -> None:
    found = report()
    assert (found.passed, found.summary) == (True, "Ready: 7 passed")
    found.left = ["pool x: still being deleted"]
    assert not found.passed
    found.left, found.problem = [], RunnerError("R-SERVICE", "no answer")
    assert not found.passed
    found = report()
    found.evidence = Documents(signals=replace(Documents().signals, stdout="")).evidence()
    assert (found.passed, found.summary) == (False, "Not ready: 6 passed, 1 failed")


def test_document_has_every_row_with_numbers_and_what_was_measured() -> None:
    document = report().to_json()
    assert [row["name"] for row in document["rows"]] == [*ROWS]
    assert document["rows"][1]["values"] == {"asked": 2, "came": 2, "seconds": 12.0}
    assert document["pool"] == "local: 2 nodes, local, spot"
    assert document["bounds"]["capacity"] == LOCAL_BOUNDS.capacity
    assert document["not_covered"]
    assert "took 66 s" in document["time"]


def test_page_escapes_texts_and_needs_no_other_file() -> None:
    found = report()
    found.left = ["pool <b>: runner pool rm <b>"]
    page = Text(found.to_html())
    assert page.urls == []
    for text in (*ROWS, "pool <b>: runner pool rm <b>", "Not ready", "Not covered"):
        assert text in page.text


def test_what_is_left_names_a_command_for_its_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise RunnerError("R-SERVICE", "no answer")

    monkeypatch.setattr(made, "find_run", refuse)
    monkeypatch.setattr(made, "delete_job", refuse)
    here = local_outputs(LocalState(1, 2, nodes=1, slots=1))
    for outputs, where in (
        (here, "--target local"),
        (replace(here, location="eastus", stack="prod"), "--target azure --stack prod"),
    ):
        found = made.MadeThings(tmp_path / "made.json", runs=("r",), jobs=("j",))
        assert found.remove(Connection(outputs, None), ignore_progress) == [
            f"run r: no answer; runner rm r --yes {where}",
            f"job j: no answer; run `runner qualify {where}` again",
        ]
