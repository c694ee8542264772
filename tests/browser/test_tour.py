"""The walk of `tools/page_tour.py`, which a newcomer takes in the browser alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import NewPage, Watched, start_page
from tests.e2e.conftest import Cli
from tools.page_tour import NAMES, PICTURES, Tour

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "page.md"


@pytest.mark.feature(55)
@pytest.mark.timeout(600)
def test_newcomer_trains_compares_and_reads_the_bill_in_the_browser(
    own_services: Cli, new_page: NewPage, watched: Watched, tmp_path: Path
) -> None:
    own_services.ok("local", "up", "--nodes", "2")
    server = start_page(own_services)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    try:
        Tour(new_page(server), pictures).walk()
    finally:
        server.stop()
    assert {each.stem for each in pictures.iterdir()} == set(NAMES)
    assert watched.errors == []


def test_guide_shows_the_pictures_of_the_tour() -> None:
    assert {each.stem for each in PICTURES.iterdir()} == set(NAMES)
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in NAMES if f"(../page/{name}.png)" not in text] == []
