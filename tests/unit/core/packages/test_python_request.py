"""Requests for Python, compared with what `packaging` says of versions."""

from __future__ import annotations

import pytest

from runner.core.packages.python_request import (
    is_allowed,
    minors,
    normalize_request,
    poetry_request,
    poetry_specifiers,
    read_version_file,
)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("3.12", "3.12"),
        ("3.12.4", "3.12.4"),
        ("3.12.*", "3.12"),
        (">=3.11", ">=3.11"),
        (" >=3.11 , <3.13,", ">=3.11,<3.13"),
        ("~=3.11", "~=3.11"),
        ("!=3.11.2", "!=3.11.2"),
        ("cpython-3.12", "3.12"),
        ("python3.11", "3.11"),
        ("3.15.0a1", "3.15.0a1"),
    ],
)
def test_request_gets_the_form_of_the_node(text: str, request_: str) -> None:
    assert normalize_request(text) == request_


@pytest.mark.parametrize("text", ["", "newest", "pypy3.10", ">3.x", "3.12 or newer", ">=", "^3.10"])
def test_other_text_is_no_request(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        normalize_request(text)


@pytest.mark.parametrize(
    ("text", "specifiers"),
    [
        ("^3.10", ">=3.10,<4"),
        ("^3.10.2", ">=3.10.2,<4"),
        ("~3.10", ">=3.10,<3.11"),
        ("~3", ">=3,<4"),
        ("3.*", "==3.*"),
        (">=3.9,<3.12", ">=3.9,<3.12"),
        (">=3.9 <3.12", ">=3.9,<3.12"),
        ("^0.2.3", ">=0.2.3,<0.3"),
        ("^0.0.3", ">=0.0.3,<0.0.4"),
        ("1.2.3", "==1.2.3"),
        ("~=3.11", "~=3.11"),
        ("*", ""),
    ],
)
def test_constraint_of_poetry_becomes_specifiers(text: str, specifiers: str) -> None:
    assert poetry_specifiers(text) == specifiers


def test_first_possible_alternative_of_poetry_counts() -> None:
    assert poetry_request("~2.7 || ^3.9") == ">=3.9,<4"
    assert poetry_request("*") == ""
    with pytest.raises(ValueError, match="cannot read"):
        poetry_request("three")


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (">=3.13", ["3.13", "3.14", "3.15"]),
        ("~=3.11", ["3.11", "3.12", "3.13", "3.14", "3.15"]),
        ("~=3.11.2", ["3.11"]),
        ("3.12", ["3.12"]),
        ("3.12.1", ["3.12"]),
        (">=3.10,<3.12", ["3.10", "3.11"]),
        (">3.10,!=3.11.*,<3.13", ["3.10", "3.12"]),
        (">=3.20", ["3.20"]),
        ("3", [f"3.{minor}" for minor in range(7, 16)]),
        ("<3", []),
        (">=4", []),
        (">=3.12,<3.11", []),
        ("==2.7.*", []),
    ],
)
def test_minor_versions_of_a_request(request_: str, found: list[str]) -> None:
    assert minors(request_) == found


def test_requests_that_exclude_each_other() -> None:
    assert is_allowed("3.12", by=">=3.11")
    assert is_allowed("3.11.4", by="~=3.11.2")
    assert not is_allowed("3.10", by=">=3.11")
    assert not is_allowed("3.11.1", by=">3.11.1,<3.12")


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("3.13\n", "3.13"),
        ("# pinned\n\n3.11.4\n3.10.2\n", "3.11.4"),
        ("cpython-3.12.1-linux-x86_64-gnu\n", "3.12.1"),
        ("my-env\n", None),
        ("pypy3.9-7.3\n", None),
        ("", None),
    ],
)
def test_version_file(text: str, request_: str | None) -> None:
    assert read_version_file(text) == request_
