"""What a killed deployment had begun is found again by the id that Azure gives it."""

from __future__ import annotations

import pytest

from infra.unfinished import arm_id
from tests.unit.infra import cloud
from tests.unit.infra.good_resources import GOOD
from tests.unit.infra.stacks import full_stack


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_an_id_is_the_one_that_azure_gives(kind: str) -> None:
    token = f"azure-native:{kind}"
    assert arm_id(token, GOOD[kind], cloud.SUBSCRIPTION) == cloud.arm_id(token, GOOD[kind])


def test_everything_that_a_stack_declares_has_an_id() -> None:
    declared = full_stack().resources
    assert declared
    for found in declared:
        expected = cloud.arm_id(found.type, found.inputs)
        assert arm_id(found.type, found.inputs, cloud.SUBSCRIPTION) == expected


def test_what_is_no_resource_of_azure_has_none() -> None:
    assert arm_id("runner:infra:GpuPool", {}, cloud.SUBSCRIPTION) is None
    assert arm_id("azure-native:batch:Pool", {"poolName": "t4"}, cloud.SUBSCRIPTION) is None
