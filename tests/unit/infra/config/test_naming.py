"""Names that Azure takes, whatever a stack is called, and that no two stacks share."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from runner_infra.config.naming import Names
from tests.unit.infra.cloud import SUBSCRIPTION

STACKS = [
    "dev",
    "Dev",
    "a.b",
    "a-b",
    "A.B_c-",
    "a_b_c",
    "9",
    "a" + "." * 90,
    "my-very-long-stack-name-a",
    "my-very-long-stack-name-b",
    "x" * 100,
]


@pytest.mark.parametrize("stack", STACKS)
def test_names_of_every_stack_are_valid_in_azure(stack: str) -> None:
    names = Names(stack, SUBSCRIPTION)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?", names.slug)
    assert "--" not in names.slug
    assert re.fullmatch(r"[a-z0-9]{3,24}", names.storage_account)
    assert re.fullmatch(r"[a-zA-Z0-9]([\w.]{0,78}[a-zA-Z0-9])?", names.gallery)
    assert len(f"{names.of('it')}-{'0' * 12}") <= 64


@pytest.mark.parametrize(("one", "other"), list(combinations(STACKS, 2)))
def test_no_two_stacks_share_a_name(one: str, other: str) -> None:
    first, second = Names(one, SUBSCRIPTION), Names(other, SUBSCRIPTION)
    assert first.resource_group.lower() != second.resource_group.lower()
    assert first.gallery.lower() != second.gallery.lower()
    assert first.storage_account != second.storage_account


def test_plain_name_is_unchanged() -> None:
    assert Names("dev", SUBSCRIPTION).resource_group == "rg-runner-dev"
