"""The identities of a workflow in GitHub: one that plans, and one that deploys.

Neither has a secret: Entra exchanges a token that GitHub issues to a job. Its subject says for
which event or environment, so a pull request cannot use the identity that deploys.
https://docs.github.com/actions/reference/security/oidc and
https://learn.microsoft.com/entra/workload-id/workload-identity-federation-create-trust-user-assigned-managed-identity
(read 2026-11-29)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pulumi
from pulumi_azure_native import managedidentity

from runner.core.azure.clouds import Cloud
from runner_infra.components.context import StackContext, assign_role
from runner_infra.config.ci import CiConfig
from runner_infra.planning.earlier import PLANNER

_ISSUER = "https://token.actions.githubusercontent.com"
_READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
_CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
_ROLE_ADMINISTRATOR = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
_BLOB_DATA_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
_BLOB_DATA_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
_KEY_VAULT_CRYPTO_USER = "12338af0-0e69-4776-bea7-57ae8d297424"
_ACR_PULL = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
# The roles that a stack assigns. A test compares them with those of all components.
ASSIGNED_ROLES = frozenset(
    {
        _BLOB_DATA_CONTRIBUTOR,
        _BLOB_DATA_READER,
        "db58b8e5-c6ad-4a2a-8342-4190687cbf4a",  # Storage Blob Delegator
        "69566ab7-960f-475b-8e7c-b3118f30c6bd",  # Storage File Data Privileged Contributor
        "6aaa78f1-f7de-44ca-8722-c64a23943cae",  # Azure Batch Data Contributor
        "48e5e92e-a480-4e71-aa9c-2778f4c13781",  # Azure Batch Job Submitter
        _ACR_PULL,
        "8311e382-0749-4cb8-b61a-304f252e45ec",  # AcrPush
        "85a2d0d9-2eba-4c9c-b355-11c2cc0788ab",  # Compute Gallery Artifacts Publisher
    }
)


class CiIdentities(pulumi.ComponentResource):
    """The identities `id-ci-plan-…` and `id-ci-deploy-…` with their federated credentials.

    The first may read the group of the stack. The second may change it, and assign the roles that
    a stack assigns, but no role that would let it assign others. A refresh reads every assignment
    of a role, so both may read each resource on which the stack assigns one.
    """

    def __init__(
        self,
        name: str,
        context: StackContext,
        config: CiConfig,
        cloud: Cloud,
        scopes: Sequence[str],
        registry: str | None = None,
    ) -> None:
        """Declare the identities and their roles.

        Args:
            name: the component's name in Pulumi.
            context: the stack.
            config: the repository, its branch and its environment.
            cloud: the cloud, whose Entra exchanges the tokens.
            scopes: IDs of adopted accounts, beside the group of the stack.
            registry: ID of an adopted registry on which the stack lets its nodes pull.
        """
        super().__init__("runner:infra:CiIdentities", name)
        self._context = context
        self._audience = cloud.exchange_audience
        self._child = pulumi.ResourceOptions(parent=self)
        repository = f"repo:{config.github}"
        plan = self._identity(
            "plan",
            {
                "pull-request": f"{repository}:pull_request",
                "branch": f"{repository}:ref:refs/heads/{config.branch}",
            },
        )
        deploy = self._identity(
            "deploy", {"environment": f"{repository}:environment:{config.environment}"}
        )
        places = {"group": context.resource_group_id} | {
            scope.rpartition("/")[2].lower(): scope for scope in scopes
        }
        for place, scope in places.items():
            self._grant(f"ci-plan-reads-{place}", plan, _READER, scope)
            self._grant(f"ci-deploys-{place}", deploy, _CONTRIBUTOR, scope)
            self._grant(
                f"ci-assigns-roles-{place}",
                deploy,
                _ROLE_ADMINISTRATOR,
                scope,
                _only(ASSIGNED_ROLES),
            )
        if registry is not None:
            self._grant("ci-plan-reads-registry", plan, _READER, registry)
            # This role may read, too.
            self._grant(
                "ci-assigns-roles-registry",
                deploy,
                _ROLE_ADMINISTRATOR,
                registry,
                _only({_ACR_PULL}),
            )
        both = (("plan", plan), ("deploy", deploy))
        if config.state_account is not None:
            self._grant("ci-plan-state", plan, _BLOB_DATA_READER, config.state_account)
            self._grant("ci-deploy-state", deploy, _BLOB_DATA_CONTRIBUTOR, config.state_account)
        if config.key_vault is not None:
            for kind, identity in both:
                self._grant(f"ci-{kind}-key", identity, _KEY_VAULT_CRYPTO_USER, config.key_vault)
        for what, scope in (("state", config.state_account), ("key", config.key_vault)):
            for kind, identity in both if scope is not None else ():
                self._grant(f"ci-{kind}-reads-{what}", identity, _READER, str(scope))
        self.register_outputs({"plan": plan.client_id, "deploy": deploy.client_id})

    def _identity(
        self, kind: str, subjects: Mapping[str, str]
    ) -> managedidentity.UserAssignedIdentity:
        """Declare an identity that jobs of these subjects may use."""
        identity = managedidentity.UserAssignedIdentity(
            PLANNER if kind == "plan" else f"identity-ci-{kind}",
            resource_name_=self._context.names.of(f"id-ci-{kind}"),
            **self._context.placed,
            opts=self._child,
        )
        # Azure rejects concurrent changes of the credentials of one identity.
        before: list[pulumi.Resource] = []
        for name, subject in subjects.items():
            credential = managedidentity.FederatedIdentityCredential(
                f"ci-{kind}-{name}",
                resource_group_name=self._context.resource_group_name,
                resource_name_=identity.name,
                federated_identity_credential_resource_name=f"github-{name}",
                issuer=_ISSUER,
                subject=subject,
                audiences=[self._audience],
                opts=pulumi.ResourceOptions(parent=self, depends_on=before),
            )
            before = [credential]
        return identity

    def _grant(
        self,
        name: str,
        identity: managedidentity.UserAssignedIdentity,
        role: str,
        scope: pulumi.Input[str],
        condition: str | None = None,
    ) -> None:
        assign_role(
            name,
            self._context,
            role,
            principal_id=identity.principal_id,
            scope=scope,
            opts=self._child,
            condition=condition,
        )


def _only(allowed: Collection[str]) -> str:
    """Return the condition that allows only assignments of these roles, and their removal.

    https://learn.microsoft.com/azure/role-based-access-control/delegate-role-assignments-examples
    (read 2026-11-29)
    """
    roles = ", ".join(sorted(allowed))
    rules = [
        f"((!(ActionMatches{{'Microsoft.Authorization/roleAssignments/{action}'}})) OR "
        f"(@{source}[Microsoft.Authorization/roleAssignments:RoleDefinitionId] "
        f"ForAnyOfAnyValues:GuidEquals {{{roles}}}))"
        for action, source in (("write", "Request"), ("delete", "Resource"))
    ]
    return " AND ".join(rules)
