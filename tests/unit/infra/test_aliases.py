"""Under which former types the engine looks for a resource of ours."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import monitor, storage

from infra.aliases import forget_versions
from tests.unit.infra.recording import Registered, record
from tests.unit.infra.stacks import full_stack

_SCOPE = "/subscriptions/00000000-0000-0000-0000-000000000000"


def _by_name(*, forget: bool) -> dict[str, Registered]:
    def declare() -> dict[str, str]:
        if forget:
            forget_versions()
        own = pulumi.ResourceOptions(aliases=[pulumi.Alias(name="kept-by-name"), "urn:of-ours"])
        storage.BlobContainer(
            "box", container_name="box", account_name="acct", resource_group_name="g", opts=own
        )
        # One whose module has another name since version 3 of the SDK.
        monitor.DiagnosticSetting("watch", name="w", resource_uri=_SCOPE, opts=own)
        assert len(own.aliases or ()) == 2, "what the caller passed is the caller's"
        return {}

    return {found.name: found for found in record(declare).resources}


def test_former_modules_and_own_aliases_stay_and_versions_go() -> None:
    before, after = _by_name(forget=False), _by_name(forget=True)
    for name in ("box", "watch"):
        kept = [t for t in before[name].former_types if "/v" not in t]
        assert len(kept) < len(before[name].former_types), "the SDK brings versions to forget"
        assert list(after[name].former_types) == kept
    assert "azure-native:insights:DiagnosticSetting" in after["watch"].former_types
    assert after["box"].former_types == ("", ""), "an alias by name and one by URN have no type"


def test_no_resource_of_a_stack_is_looked_for_under_an_explicit_version() -> None:
    found = full_stack()
    assert [r.name for r in found.resources if any("/v" in t for t in r.former_types)] == []
    assert any(r.former_types for r in found.resources), "moved modules are there"
    versioned = [r.type for r in found.resources if "/v" in r.type]
    assert versioned == [], "a versioned class needs its versions: infra/aliases.py"
