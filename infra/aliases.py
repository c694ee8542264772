"""Former names of Azure's classes: which of them a stack of ours can hold."""

from __future__ import annotations

import re

import pulumi

# `azure-native:batch/v20250601:Pool`; a preview or beta version has the word behind the date.
_VERSIONED = re.compile(r"/v\d{8}[a-z]*:")


def forget_versions() -> None:
    """From here on, resources of this program are not also looked for under explicit versions.

    Every class of azure-native names itself under all its API versions, some 340 names for the
    default stack, and each costs outputs on the event loop: a fifth of the program's time
    (`bench/infra_program.py`). They are for programs that import a versioned module, which this
    one never did. Names of another module stay, such as `insights` for what is `monitor` now:
    by these a stack finds its resources after an upgrade of the SDK.
    """
    pulumi.runtime.register_stack_transformation(_without_versions)


def _without_versions(
    args: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult | None:
    if not args.opts.aliases:
        return None
    opts = pulumi.ResourceOptions.merge(args.opts, None)  # a copy: the caller's stays as it is
    opts.aliases = [alias for alias in args.opts.aliases if not _versioned(alias)]
    return pulumi.ResourceTransformationResult(args.props, opts)


def _versioned(alias: pulumi.Input[str | pulumi.Alias]) -> bool:
    return (
        isinstance(alias, pulumi.Alias)
        and isinstance(alias.type_, str)
        and _VERSIONED.search(alias.type_) is not None
    )
