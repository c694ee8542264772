"""HTML of the page: everything that is not an element is escaped."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from batch_emulator.page.markup import Markup, clean, el, join, moment, url


def test_text_and_attributes_are_escaped() -> None:
    hostile = "\"><script>alert('x')</script>&"
    made = el("a", hostile, title=hostile)
    assert "<script>" not in made
    assert made.count("&lt;script&gt;") == 2
    assert '"&gt;' not in made.replace("&quot;&gt;", "")


def test_elements_are_not_escaped_again() -> None:
    assert el("p", el("b", "x"), ["<", el("i", "y")]) == "<p><b>x</b>&lt;<i>y</i></p>"


def test_text_that_is_joined_with_an_element_stays_text() -> None:
    assert isinstance(join(["<", Markup("<br>")]), Markup)
    assert join(["<", Markup("<br>")]) == "&lt;<br>"
    assert not isinstance(Markup("<br>") + "<script>", Markup)


def test_attributes_without_a_value_are_left_out() -> None:
    made = el("input", disabled=True, hidden=False, value=None, class_="a", data_id=1)
    assert made == '<input disabled class="a" data-id="1">'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202eexe.txt", "\\u202eexe.txt"),
        ("\udcff", "\N{REPLACEMENT CHARACTER}"),
        ("é漢", "é漢"),
    ],
)
def test_control_and_direction_characters_are_visible(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_address_is_quoted_and_keeps_the_bytes_of_a_name() -> None:
    assert url("jobs", "a:job-1", "tasks", "../x?") == "/jobs/a:job-1/tasks/..%2Fx%3F"
    assert url("files", path="wd/\udcff&", empty="") == "/files?path=wd%2F%FF%26"


def test_time_has_utc_for_the_machine_and_on_hover() -> None:
    made = moment(datetime(2026, 11, 29, 1, 2, 3, 400_000, UTC))
    assert 'datetime="2026-11-29T01:02:03.400000Z"' in made
    assert 'title="2026-11-29 01:02:03.400 UTC"' in made
