"""The coverage page matches the routes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from batch_emulator.http.routes.table import ROUTES
from tools import emulator_coverage, emulator_properties, emulator_reference
from tools.emulator_coverage_notes import AREAS, REPORTS

ROOT = Path(__file__).parents[3]
OPENAPI = ROOT.parent / "shared" / "reference" / "openapi"


def test_conformance_page_and_badge_are_current() -> None:
    written = (ROOT / "docs" / "emulator-coverage.md").read_text(encoding="utf-8")
    assert written == emulator_coverage.page()
    badge = (ROOT / "docs" / "emulator-conformance.svg").read_text(encoding="utf-8")
    assert badge == emulator_coverage.svg()
    ElementTree.fromstring(badge)


def test_every_operation_property_and_behaviour_has_one_statement_with_a_source() -> None:
    found = emulator_coverage.groups()
    assert len(found["operations"]) == len(ROUTES)
    for statements in found.values():
        assert statements
        for each in statements:
            assert each.source
            assert (each.verdict == "differs") == bool(each.how), each.subject
    verdicts = {each.subject: each for each in found["operations"]}
    assert verdicts["Pool_Add"].how.startswith("without effect or refused: cloudService")
    assert verdicts["Job_Disable"].verdict == "same"
    assert verdicts["Pool_ListUsageMetrics"].verdict == "our choice"


def test_every_report_of_a_user_has_a_test_that_exists() -> None:
    named = {each.test for each in REPORTS}
    for test in named:
        module, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / module).read_text("utf-8"), test
    own = (ROOT / "tests/contract/test_reports.py").read_text("utf-8")
    tests = {
        f"contract/test_reports.py::{name}" for name in re.findall(r"^def (test_\w+)", own, re.M)
    }
    assert tests <= named


@pytest.mark.skipif(not OPENAPI.is_dir(), reason="the service's description is not here")
def test_every_operation_of_the_description_has_a_route() -> None:
    known = {(route.method, route.path.partition("(")[0].count("/"), route.path.split("/")[-1])
             for route in ROUTES}  # fmt: skip
    assert known
    missing: list[str] = []
    for description in OPENAPI.glob("*-stable/*.json"):
        for path, methods in json.loads(description.read_text())["paths"].items():
            for method in methods:
                route = (method.upper(), path.partition("(")[0].count("/"), path.split("/")[-1])
                if route not in known and "ertificates(" not in path:
                    missing.append(f"{method.upper()} {path}")
    assert missing == []


def test_tables_of_the_readme_are_current() -> None:
    written = emulator_reference.PAGE.read_text(encoding="utf-8")
    assert written == emulator_reference.page(written)
    assert "| `--data-dir DATA_DIR` | required |" in written


def test_every_area_of_notes_names_existing_operations() -> None:
    names = [route.operation for route in ROUTES]
    for area in AREAS:
        assert area.notes
        for start in area.operations:
            assert any(name.startswith(start) for name in names), f"{area.title}: {start}"


def test_page_has_the_status_of_every_property() -> None:
    types = json.loads(emulator_properties.SCHEMA.read_text(encoding="utf-8"))["types"]
    for name, properties in types.items():
        said = emulator_properties.statuses(name, list(properties))
        assert list(said) or not properties
        assert {text.partition(":")[0] for text in said.values()} <= {"acts", "stored", "refused"}
    with pytest.raises(ValueError, match=r"no status for TaskSchedulingPolicy\.newer"):
        emulator_properties.statuses("TaskSchedulingPolicy", ["newer"])


def test_page_names_only_existing_properties() -> None:
    types = json.loads(emulator_properties.SCHEMA.read_text(encoding="utf-8"))["types"]
    tables = (emulator_properties.STORED, emulator_properties.REFUSED)
    named = [(name, names) for name, names in emulator_properties.ACTING.items()]
    named += [(name, names) for table in tables for name, (names, _) in table.items()]
    for name, names in named:
        assert set(names.split()) <= {"*", *types[name]}, name


def test_every_operation_is_implemented() -> None:
    assert [route.operation for route in ROUTES if route.handler is None] == []
