"""What a program declares under mocks is judged by the oracle, resource by resource."""

from __future__ import annotations

from typing import Any

import pytest
from pulumi_azure_native import resources

from tests.unit.infra.recording import record


def _group(location: str) -> dict[str, Any]:
    group = resources.ResourceGroup("group", resource_group_name="runner-dev", location=location)
    return {"name": group.name}


def test_valid_resource_is_recorded() -> None:
    assert (
        record(lambda: _group("westeurope")).one("resources:ResourceGroup").inputs["location"]
        == "westeurope"
    )


def test_defect_fails_the_program_with_its_path() -> None:
    with pytest.raises(Exception, match="group: location: 'westeurop' is no region"):
        record(lambda: _group("westeurop"))
