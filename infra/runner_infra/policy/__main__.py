"""The policy pack: `pulumi preview --policy-pack infra/runner_infra/policy`."""

from __future__ import annotations

from datetime import UTC, datetime

from pulumi_policy import (
    EnforcementLevel,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)

from runner_infra.policy import rules


def _resource(name: str, rule: rules.ResourceRule) -> ResourceValidationPolicy:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        rule(args.resource_type, args.props, lambda text: report(text, None))

    return ResourceValidationPolicy(name=name, description=rule.__doc__ or name, validate=validate)


def _stack(name: str, rule: rules.StackRule) -> StackValidationPolicy:
    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        declared = [
            rules.DeclaredResource(found.resource_type, found.props) for found in args.resources
        ]
        rule(declared, lambda text: report(text, None))

    return StackValidationPolicy(name=name, description=rule.__doc__ or name, validate=validate)


PolicyPack(
    name="runner",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        _resource("no-public-blob-access", rules.no_public_blob_access),
        _resource("entra-only", rules.entra_only),
        _resource("tagged", rules.tagged),
        _resource("pools-scale-to-zero", rules.pools_scale_to_zero),
        _resource("nothing-retired", rules.nothing_retired(datetime.now(UTC).date())),
        _stack("budget-present", rules.budget_present),
        _stack("keys-only-for-the-share", rules.keys_only_for_the_share),
    ],
)
