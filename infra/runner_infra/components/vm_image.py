"""The VM image of the stack: gallery, image definition, and the template that builds versions.

A deployment declares the template but builds no image; `runner image build` does. See
docs/decisions/0007-the-image-is-built-by-a-command.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi_azure_native import compute, managedidentity
from pulumi_azure_native import virtualmachineimages as builder

from runner.core.pricing.machines import region_name
from runner_infra.components.context import StackContext, assign_role
from runner_infra.config.stack import ImageConfig
from runner_infra.planning.image_source import (
    ON_THE_MACHINE,
    load_files,
    load_versions,
    scripts_hash,
    template_hash,
    template_steps,
)

DEFINITION = "runner-gpu"
# Compute Gallery Artifacts Publisher: it allows galleries/*, but not to create VMs.
# https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/compute
# (read 2026-11-21);
# Azure's own modules assign Image Builder's identity this role on the gallery and no other
# (github.com/Azure/bicep-registry-modules, virtual-machine-images, read 2026-11-21).
_GALLERY_PUBLISHER = "85a2d0d9-2eba-4c9c-b355-11c2cc0788ab"
# The default of Image Builder, which includes validation and replication to other regions (docs of
# `build_timeout_in_minutes`, azure-native 3.29).
_BUILD_TIMEOUT_MINUTES = 240
# Ubuntu's image has 30 GB, of which the CUDA toolkit needs 8. Nodes get the same disk size.
_OS_DISK_GB = 64
_VERIFY = f"sudo {ON_THE_MACHINE}/verify.sh"


class ImageFactory(pulumi.ComponentResource):
    """A gallery with one image definition, and the Image Builder template for it.

    Pools refer to `definition_id` (the newest version) or `version_id("1.0.3")`. The template's
    name ends in a hash of its content, because Image Builder cannot update a template: a change
    creates a new one. Versions that were built are kept.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        config: ImageConfig,
    ) -> None:
        super().__init__("runner:infra:ImageFactory", name)
        self._context = context
        self._versions = load_versions()
        self._child = pulumi.ResourceOptions(parent=self)
        self.gallery = self._gallery()
        self.definition = self._definition()
        self.definition_id: pulumi.Output[str] = self.definition.id
        self.identity = self._identity()
        publisher = assign_role(
            "image-publishes-to-gallery",
            context,
            _GALLERY_PUBLISHER,
            principal_id=self.identity.principal_id,
            scope=self.gallery.id,
            opts=self._child,
        )
        plan = template_plan(context, config, self._versions)
        self.template_name = f"{context.names.of('it')}-{template_hash(plan)}"
        self.template = self._template(plan, publisher)
        self.register_outputs(
            {
                "definition_id": self.definition_id,
                "template_name": self.template_name,
                "identity": self.identity.id,
            }
        )

    def version_id(self, version: str) -> pulumi.Output[str]:
        """Return the ID for a pool's image reference: `latest` or a version such as `1.0.3`."""
        if version == "latest":
            return self.definition_id
        return pulumi.Output.concat(self.definition_id, "/versions/", version)

    def _gallery(self) -> compute.Gallery:
        context = self._context
        return compute.Gallery(
            "gallery",
            gallery_name=context.names.gallery,
            **context.placed,
            description="VM images of runner",
            opts=self._child,
        )

    def _definition(self) -> compute.GalleryImage:
        context, versions = self._context, self._versions
        return compute.GalleryImage(
            "image-definition",
            gallery_name=self.gallery.name,
            gallery_image_name=DEFINITION,
            **context.placed,
            description=f"Ubuntu {versions['UBUNTU_RELEASE']} with driver, CUDA, cuDNN and Docker",
            identifier=compute.GalleryImageIdentifierArgs(
                publisher="runner", offer="gpu", sku=f"ubuntu-{versions['UBUNTU_RELEASE']}"
            ),
            os_type=compute.OperatingSystemTypes.LINUX,
            # Batch supports only generalized images.
            # https://learn.microsoft.com/azure/batch/batch-sig-images (2024-03-04, read 2026-11-21)
            os_state=compute.OperatingSystemStateTypes.GENERALIZED,
            hyper_v_generation=compute.HyperVGeneration.V2,
            architecture=compute.Architecture.X64,
            # Our choice: a pool may boot with or without Secure Boot.
            features=[
                compute.GalleryImageFeatureArgs(name="SecurityType", value="TrustedLaunchSupported")
            ],
            end_of_life_date=f"{versions['END_OF_LIFE']}T00:00:00Z",
            opts=self._child,
        )

    def _identity(self) -> managedidentity.UserAssignedIdentity:
        context = self._context
        return managedidentity.UserAssignedIdentity(
            "identity-image",
            resource_name_=context.names.of("id-image"),
            **context.placed,
            opts=self._child,
        )

    def _template(
        self, plan: Mapping[str, Any], publisher: pulumi.Resource
    ) -> builder.VirtualMachineImageTemplate:
        return builder.VirtualMachineImageTemplate(
            "image-template",
            image_template_name=self.template_name,
            resource_group_name=self._context.resource_group_name,
            location=plan["location"],
            identity=builder.ImageTemplateIdentityArgs(
                type=builder.ResourceIdentityType.USER_ASSIGNED,
                user_assigned_identities=[self.identity.id],
            ),
            source=builder.ImageTemplatePlatformImageSourceArgs(
                type="PlatformImage", **plan["source"]
            ),
            customize=[
                builder.ImageTemplateShellCustomizerArgs(type="Shell", name=name, inline=lines)
                for name, lines in plan["customize"]
            ],
            validate=_validation(plan["validate"]),
            distribute=[self._distribution(plan)],
            vm_profile=builder.ImageTemplateVmProfileArgs(
                vm_size=plan["vm_size"], os_disk_size_gb=plan["os_disk_gb"]
            ),
            build_timeout_in_minutes=plan["timeout_minutes"],
            # A build takes an hour on a GPU VM, so only a command starts it.
            auto_run=builder.ImageTemplateAutoRunArgs(state=builder.AutoRunState.AUTO_RUN_DISABLED),
            error_handling=builder.ImageTemplatePropertiesErrorHandlingArgs(
                on_customizer_error=builder.OnBuildError.CLEANUP,
                on_validation_error=builder.OnBuildError.CLEANUP,
            ),
            tags=plan["tags"],
            # Image Builder does not update templates (release notes of Az.ImageBuilder 0.5).
            opts=pulumi.ResourceOptions.merge(
                self._child,
                pulumi.ResourceOptions(depends_on=[publisher], replace_on_changes=["*"]),
            ),
        )

    def _distribution(
        self, plan: Mapping[str, Any]
    ) -> builder.ImageTemplateSharedImageDistributorArgs:
        return builder.ImageTemplateSharedImageDistributorArgs(
            type="SharedImage",
            gallery_image_id=self.definition_id,
            run_output_name="gallery",
            target_regions=[
                builder.TargetRegionArgs(
                    name=region,
                    # One replica serves 300 nodes (batch-sig-images, see above).
                    replica_count=1,
                    storage_account_type=builder.SharedImageStorageAccountType.STANDARD_LRS,
                )
                for region in plan["regions"]
            ],
            versioning=builder.DistributeVersionerLatestArgs(scheme="Latest", major=1),
            artifact_tags=plan["artifact_tags"],
        )


def template_plan(
    context: StackContext, config: ImageConfig, versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of the template as plain data. Its hash is part of the template's name."""
    steps = template_steps(load_files())
    regions = dict.fromkeys(region_name(r) for r in (context.location, *config.replicate_to))
    return {
        "location": context.location,
        "source": {
            "publisher": versions["UBUNTU_IMAGE_PUBLISHER"],
            "offer": versions["UBUNTU_IMAGE_OFFER"],
            "sku": versions["UBUNTU_IMAGE_SKU"],
            "version": versions["UBUNTU_IMAGE_VERSION"],
        },
        "customize": [(step.name, list(step.lines)) for step in steps],
        "validate": [("verify", [_VERIFY])],
        "vm_size": config.build_vm_size,
        "os_disk_gb": _OS_DISK_GB,
        "timeout_minutes": _BUILD_TIMEOUT_MINUTES,
        "regions": list(regions),
        "artifact_tags": {**context.tags, **_artifact_tags(versions)},
        "tags": dict(context.tags),
    }


def _artifact_tags(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a version, which `runner image ls` shows."""
    return {
        "runner-scripts": scripts_hash(),
        "runner-node-agent": versions["NODE_AGENT_SKU"],
        "runner-os-end-of-life": versions["END_OF_LIFE"],
        "runner-driver": versions["NVIDIA_DRIVER_BRANCH"],
        "runner-cuda": versions["CUDA_VERSION"],
        "runner-cudnn": versions["CUDNN_VERSION"],
    }


def _validation(
    checks: Sequence[tuple[str, list[str]]],
) -> builder.ImageTemplatePropertiesValidateArgs:
    return builder.ImageTemplatePropertiesValidateArgs(
        continue_distribute_on_failure=False,
        source_validation_only=False,
        in_vm_validations=[
            builder.ImageTemplateShellValidatorArgs(type="Shell", name=name, inline=lines)
            for name, lines in checks
        ],
    )
