"""The coverage page says what the routes say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batch_emulator import coverage, reference
from batch_emulator.routes.table import ROUTES

ROOT = Path(__file__).parents[3]
OPENAPI = ROOT.parent / "shared" / "reference" / "openapi"


def test_page_is_what_make_schema_writes() -> None:
    written = (ROOT / "docs" / "emulator-coverage.md").read_text(encoding="utf-8")
    assert written == coverage.page()


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


def test_the_tables_of_the_readme_are_what_make_schema_writes() -> None:
    written = reference.PAGE.read_text(encoding="utf-8")
    assert written == reference.page(written)
    assert "| `--account ACCOUNT` | required |" in written
