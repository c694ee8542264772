"""The inputs of one valid resource of every type that the stack declares, as Pulumi sends them."""

from __future__ import annotations

from typing import Any

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP_ID = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/runner-dev"
_PROVIDERS = f"{GROUP_ID}/providers"
NODES = f"{_PROVIDERS}/Microsoft.ManagedIdentity/userAssignedIdentities/runner-nodes"
STORAGE = f"{_PROVIDERS}/Microsoft.Storage/storageAccounts/runnerdata"
BATCH = f"{_PROVIDERS}/Microsoft.Batch/batchAccounts/runnerdev"
NETWORK = f"{_PROVIDERS}/Microsoft.Network"
IMAGE = f"{_PROVIDERS}/Microsoft.Compute/galleries/runner_gallery/images/gpu"
TAGS = {"app": "runner", "stack": "dev"}
_HERE = {"resourceGroupName": "runner-dev", "location": "westeurope", "tags": TAGS}
FORMULA = """cap=8; w=TimeInterval_Minute*5;
s=$PendingTasks.GetSamplePercent(w);
t=s<70 ? max(0,$PendingTasks.GetSample(1)) : max($PendingTasks.GetSample(1), avg($PendingTasks.GetSample(w)));
$TargetDedicatedNodes=0; $TargetLowPriorityNodes=t>0 ? min(cap, max(1, t)) : 0;
$NodeDeallocationOption=taskcompletion;"""  # noqa: E501

POOL: dict[str, Any] = {
    "resourceGroupName": "runner-dev",
    "accountName": "runnerdev",
    "poolName": "t4",
    "vmSize": "Standard_NC4as_T4_v3",
    "taskSlotsPerNode": 1,
    "taskSchedulingPolicy": {"nodeFillType": "Pack"},
    "interNodeCommunication": "Disabled",
    "identity": {"type": "UserAssigned", "userAssignedIdentities": [NODES]},
    "deploymentConfiguration": {
        "virtualMachineConfiguration": {
            "imageReference": {"id": f"{IMAGE}/versions/1.2.3"},
            "nodeAgentSkuId": "batch.node.ubuntu 24.04",
            "securityProfile": {
                "securityType": "trustedLaunch",
                "uefiSettings": {"secureBootEnabled": True, "vTpmEnabled": True},
            },
        }
    },
    "scaleSettings": {"autoScale": {"formula": FORMULA, "evaluationInterval": "PT5M"}},
    "startTask": {
        "commandLine": "/bin/bash -c 'nvidia-smi -L'",
        "waitForSuccess": True,
        "maxTaskRetryCount": 1,
        "environmentSettings": [{"name": "RUNNER_GPUS", "value": "1"}],
        "userIdentity": {"autoUser": {"scope": "Pool", "elevationLevel": "Admin"}},
    },
    "mountConfiguration": [
        {
            "azureBlobFileSystemConfiguration": {
                "accountName": "runnerdata",
                "containerName": "data",
                "relativeMountPath": "data",
                "identityReference": {"resourceId": NODES},
            }
        }
    ],
    "networkConfiguration": {
        "subnetId": f"{NETWORK}/virtualNetworks/runner/subnets/pools",
        "publicIPAddressConfiguration": {"provision": "NoPublicIPAddresses"},
    },
    "metadata": [{"name": "runner-stack", "value": "dev"}],
    "tags": TAGS,
}

TEMPLATE: dict[str, Any] = {
    **_HERE,
    "imageTemplateName": "gpu-0123456789ab",
    "identity": {"type": "UserAssigned", "userAssignedIdentities": [NODES]},
    "source": {
        "type": "PlatformImage",
        "publisher": "canonical",
        "offer": "ubuntu-24_04-lts",
        "sku": "server",
        "version": "latest",
    },
    "customize": [
        {"type": "Shell", "name": "driver", "inline": ["sudo true"]},
        {"type": "Shell", "name": "cuda", "inline": ["sudo true"], "sha256Checksum": "0" * 64},
        {"type": "File", "destination": "/tmp/versions.env", "sourceUri": "https://x/versions.env"},
    ],
    "validate": {"inVMValidations": [{"type": "Shell", "name": "verify", "inline": ["./verify"]}]},
    "distribute": [
        {
            "type": "SharedImage",
            "galleryImageId": IMAGE,
            "runOutputName": "gpu-0123456789ab",
            "targetRegions": [{"name": "westeurope", "replicaCount": 1}],
            "versioning": {"scheme": "Latest", "major": 1},
        }
    ],
    "autoRun": {"state": "Disabled"},
    "buildTimeoutInMinutes": 120,
    "vmProfile": {"vmSize": "Standard_NC4as_T4_v3", "osDiskSizeGB": 64},
}

GOOD: dict[str, dict[str, Any]] = {
    "resources:ResourceGroup": {
        "resourceGroupName": "runner-dev",
        "location": "westeurope",
        "tags": TAGS,
    },
    "storage:StorageAccount": {
        **_HERE,
        "accountName": "runnerdata",
        "kind": "StorageV2",
        "sku": {"name": "Standard_LRS"},
        "allowBlobPublicAccess": False,
        "allowSharedKeyAccess": False,
        "minimumTlsVersion": "TLS1_2",
        "enableHttpsTrafficOnly": True,
    },
    "storage:BlobContainer": {
        "resourceGroupName": "runner-dev",
        "accountName": "runnerdata",
        "containerName": "runs",
        "publicAccess": "None",
    },
    "storage:FileShare": {
        "resourceGroupName": "runner-dev",
        "accountName": "runnerdata",
        "shareName": "shared",
        "shareQuota": 100,
    },
    "storage:ManagementPolicy": {
        "resourceGroupName": "runner-dev",
        "accountName": "runnerdata",
        "managementPolicyName": "default",
        "policy": {
            "rules": [
                {
                    "name": "old-runs",
                    "enabled": True,
                    "type": "Lifecycle",
                    "definition": {
                        "filters": {"blobTypes": ["blockBlob"], "prefixMatch": ["runs/"]},
                        "actions": {
                            "baseBlob": {"delete": {"daysAfterModificationGreaterThan": 90}}
                        },
                    },
                }
            ]
        },
    },
    "managedidentity:UserAssignedIdentity": {**_HERE, "resourceName": "runner-nodes"},
    "authorization:RoleAssignment": {
        "principalId": "99999999-8888-7777-6666-555555555555",
        "principalType": "ServicePrincipal",
        "roleAssignmentName": "12345678-1234-1234-1234-123456789abc",
        "roleDefinitionId": (
            f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/"
            "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
        ),
        "scope": STORAGE,
    },
    "batch:BatchAccount": {
        **_HERE,
        "accountName": "runnerdev",
        "poolAllocationMode": "BatchService",
        "allowedAuthenticationModes": ["AAD"],
        "identity": {"type": "UserAssigned", "userAssignedIdentities": [NODES]},
        "autoStorage": {
            "storageAccountId": STORAGE,
            "authenticationMode": "BatchAccountManagedIdentity",
            "nodeIdentityReference": {"resourceId": NODES},
        },
    },
    "batch:Pool": POOL,
    "compute:Gallery": {**_HERE, "galleryName": "runner_gallery"},
    "compute:GalleryImage": {
        **_HERE,
        "galleryName": "runner_gallery",
        "galleryImageName": "gpu",
        "identifier": {"publisher": "runner", "offer": "gpu", "sku": "ubuntu-24.04"},
        "osType": "Linux",
        "osState": "Generalized",
        "hyperVGeneration": "V2",
        "features": [{"name": "SecurityType", "value": "TrustedLaunchSupported"}],
    },
    "virtualmachineimages:VirtualMachineImageTemplate": TEMPLATE,
    "consumption:Budget": {
        "scope": GROUP_ID,
        "budgetName": "runner-dev",
        "amount": 100,
        "category": "Cost",
        "timeGrain": "Monthly",
        "timePeriod": {"startDate": "2026-11-01T00:00:00Z", "endDate": "2036-11-01T00:00:00Z"},
        "notifications": {
            "at80": {
                "enabled": True,
                "operator": "GreaterThanOrEqualTo",
                "threshold": 80,
                "contactEmails": [],
                "contactRoles": ["Owner"],
            }
        },
    },
    "operationalinsights:Workspace": {
        **_HERE,
        "workspaceName": "runner-dev",
        "retentionInDays": 30,
        "sku": {"name": "PerGB2018"},
    },
    "monitor:DiagnosticSetting": {
        "name": "to-workspace",
        "resourceUri": BATCH,
        "workspaceId": f"{_PROVIDERS}/Microsoft.OperationalInsights/workspaces/runner-dev",
        "logs": [{"category": "ServiceLog", "enabled": True}],
        "metrics": [{"category": "AllMetrics", "enabled": True}],
    },
    "monitor:ActionGroup": {
        "resourceGroupName": "runner-dev",
        "location": "Global",
        "tags": TAGS,
        "actionGroupName": "runner-dev",
        "groupShortName": "runner",
        "enabled": True,
        "emailReceivers": [{"name": "ops", "emailAddress": "ops@example.com"}],
    },
    "monitor:MetricAlert": {
        "resourceGroupName": "runner-dev",
        "location": "global",
        "tags": TAGS,
        "ruleName": "unusable-nodes",
        "enabled": True,
        "severity": 2,
        "scopes": [BATCH],
        "evaluationFrequency": "PT5M",
        "windowSize": "PT15M",
        "actions": [{"actionGroupId": f"{_PROVIDERS}/Microsoft.Insights/actionGroups/runner-dev"}],
        "criteria": {
            "odataType": "Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria",
            "allOf": [
                {
                    "criterionType": "StaticThresholdCriterion",
                    "name": "unusable",
                    "metricName": "UnusableNodeCount",
                    "metricNamespace": "Microsoft.Batch/batchAccounts",
                    "operator": "GreaterThan",
                    "threshold": 0,
                    "timeAggregation": "Total",
                }
            ],
        },
    },
    "network:VirtualNetwork": {
        **_HERE,
        "virtualNetworkName": "runner",
        "addressSpace": {"addressPrefixes": ["10.20.0.0/16"]},
    },
    "network:Subnet": {
        "resourceGroupName": "runner-dev",
        "virtualNetworkName": "runner",
        "subnetName": "pools",
        "addressPrefix": "10.20.0.0/20",
        "defaultOutboundAccess": False,
        "natGateway": {"id": f"{NETWORK}/natGateways/runner"},
        "networkSecurityGroup": {"id": f"{NETWORK}/networkSecurityGroups/runner"},
    },
    "network:NatGateway": {
        **_HERE,
        "natGatewayName": "runner",
        "sku": {"name": "Standard"},
        "publicIpAddresses": [{"id": f"{NETWORK}/publicIPAddresses/runner"}],
    },
    "network:PublicIPAddress": {
        **_HERE,
        "publicIpAddressName": "runner",
        "sku": {"name": "Standard"},
        "publicIPAllocationMethod": "Static",
    },
    "network:NetworkSecurityGroup": {**_HERE, "networkSecurityGroupName": "runner"},
    "network:PrivateEndpoint": {
        **_HERE,
        "privateEndpointName": "pe-batch",
        "subnet": {"id": f"{NETWORK}/virtualNetworks/runner/subnets/endpoints"},
        "privateLinkServiceConnections": [
            {"name": "pe-batch", "privateLinkServiceId": BATCH, "groupIds": ["batchAccount"]}
        ],
    },
    "network:PrivateDnsZoneGroup": {
        "resourceGroupName": "runner-dev",
        "privateEndpointName": "pe-batch",
        "privateDnsZoneGroupName": "default",
        "privateDnsZoneConfigs": [
            {
                "name": "privatelink-batch-azure-com",
                "privateDnsZoneId": f"{NETWORK}/privateDnsZones/privatelink.batch.azure.com",
            }
        ],
    },
    "privatedns:PrivateZone": {
        "resourceGroupName": "runner-dev",
        "privateZoneName": "privatelink.batch.azure.com",
        "location": "Global",
        "tags": TAGS,
    },
    "privatedns:VirtualNetworkLink": {
        "resourceGroupName": "runner-dev",
        "privateZoneName": "privatelink.batch.azure.com",
        "virtualNetworkLinkName": "runner",
        "location": "Global",
        "tags": TAGS,
        "registrationEnabled": False,
        "virtualNetwork": {"id": f"{NETWORK}/virtualNetworks/runner"},
    },
    "costmanagement:Export": {
        "scope": GROUP_ID,
        "exportName": "runner-dev",
        "location": "westeurope",
        "identity": {"type": "SystemAssigned"},
        "format": "Csv",
        "partitionData": True,
        "definition": {
            "type": "ActualCost",
            "timeframe": "MonthToDate",
            "dataSet": {"granularity": "Daily"},
        },
        "deliveryInfo": {
            "destination": {"resourceId": STORAGE, "container": "costs", "rootFolderPath": "costs"}
        },
        "schedule": {
            "status": "Active",
            "recurrence": "Daily",
            "recurrencePeriod": {"from": "2026-11-30T00:00:00Z", "to": "2036-12-31T00:00:00Z"},
        },
    },
    "containerregistry:Registry": {
        **_HERE,
        "registryName": "runnerdev",
        "sku": {"name": "Basic"},
        "adminUserEnabled": False,
    },
}
