"""The service's defaults for pools, jobs and tasks, and the spelling in which it returns values.

Bodies of clients are stored unchanged and become canonical here, when they are shown. Durations
and times are normalised, sizes and most words are in lower case, and some words have the case of
the service's own enumerations. Sources: the examples of the OpenAPI description, and recorded
answers of the service in the tests of the SDKs for Python, .NET and JavaScript
(github.com/Azure/azure-sdk-assets, 2025-03 to 2026-02, read 2026-11-22) and for Java
(`test-recordings` of microsoft-azure-batch, github.com/Azure/azure-sdk-for-java, 2020-10 to
2024-09, read 2026-11-30). Where neither shows a value, it is our choice [S].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from batch_emulator.domain.model import Json, part
from batch_emulator.domain.transitions.autoscale import DEFAULT_INTERVAL
from batch_emulator.domain.transitions.job_preparation import PREPARATION_ID, RELEASE_ID
from batch_emulator.domain.transitions.pools import DEFAULT_RESIZE_TIMEOUT
from batch_emulator.domain.values import FOREVER_TEXT, canonical_duration, canonical_time

USER: Json = {"autoUser": {"scope": "pool", "elevationLevel": "nonadmin"}}
_RETENTION = "P7D"
_RELEASE_TIME = "PT15M"

# words that the service does not return in lower case
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "nodeFillType": ("Spread", "Pack"),
    "caching": ("None", "ReadOnly", "ReadWrite"),
    "provision": ("BatchManaged", "UserManaged", "NoPublicIPAddresses"),
    "policy": ("Regional", "Zonal"),
    "placement": ("CacheDisk",),
    "uploadCondition": ("TaskSuccess", "TaskFailure", "TaskCompletion"),
}
_LOWER = ("jobDefaultOrder", "storageAccountType", "securityType", "dynamicVNetAssignmentScope")
_DURATIONS = (
    "maxWallClockTime",
    "retentionTime",
    "resizeTimeout",
    "autoScaleEvaluationInterval",
    "startWindow",
    "recurrenceInterval",
)
_TIMES = ("doNotRunUntil", "doNotRunAfter")
_Spell = Callable[[Any], Any]


def _spelling(words: tuple[str, ...]) -> _Spell:
    known = {word.lower(): word for word in words}
    return lambda value: known.get(str(value).lower(), value)


_CANONICAL: Mapping[str, _Spell] = {
    **{name: _spelling(words) for name, words in _SPELLINGS.items()},
    **dict.fromkeys(_LOWER, lambda value: str(value).lower()),
    **dict.fromkeys(_DURATIONS, canonical_duration),
    **dict.fromkeys(_TIMES, canonical_time),
}


def _spelt(body: Json) -> Json:
    """Return an object with its own properties (not those of nested objects) in canonical form."""
    return {
        name: _CANONICAL[name](value) if name in _CANONICAL else value
        for name, value in body.items()
    }


def _completed(body: Json, **completions: Callable[[Json], Json]) -> Json:
    """Return a body whose nested objects, or lists of objects, of these names are complete."""
    shown = dict(body)
    for name, complete in completions.items():
        value: Any = body.get(name)
        if isinstance(value, list):
            shown[name] = [complete(item) for item in cast("list[Json]", value)]
        elif value is not None:
            shown[name] = complete(value)
    return shown


def _filled(body: Json) -> Json:
    """Return an object without its empty lists.

    The service returns none, except for the certificates of a pool (recorded 2022 to 2023).
    """
    kept = "certificateReferences"
    return {name: value for name, value in body.items() if value != [] or name == kept}


def pool(spec: Json) -> Json:
    """Return the body of a pool with defaults and canonical values, except its targets."""
    shown: Json = {
        "enableAutoScale": False,
        "enableInterNodeCommunication": False,
        "taskSlotsPerNode": 1,
        **_pool(spec),
    }
    if shown["enableAutoScale"]:
        shown.setdefault("autoScaleEvaluationInterval", DEFAULT_INTERVAL)
    return shown


def pool_specification(spec: Json) -> Json:
    """Return the pool of an auto pool specification, which has no state to add."""
    shown: Json = {
        "resizeTimeout": DEFAULT_RESIZE_TIMEOUT,
        "enableAutoScale": False,
        "enableInterNodeCommunication": False,
        "taskSlotsPerNode": 1,
        **_pool(spec),
    }
    if shown["enableAutoScale"]:
        return {"autoScaleEvaluationInterval": DEFAULT_INTERVAL, **shown}
    return {"targetDedicatedNodes": 0, "targetLowPriorityNodes": 0, **shown}


def _pool(spec: Json) -> Json:
    policy = {"nodeFillType": "spread", "jobDefaultOrder": "none"}
    shown = {
        **_spelt(_filled(spec)),
        "vmSize": str(spec["vmSize"]).lower(),
        "taskSchedulingPolicy": _spelt({**policy, **part(spec, "taskSchedulingPolicy")}),
    }
    return _completed(
        shown,
        startTask=start_task,
        userAccounts=partial(_user_account, windows=_is_windows(spec)),
        virtualMachineConfiguration=_machine,
        networkConfiguration=_network,
        applicationPackageReferences=_package,
    )


def _package(reference: Json) -> Json:
    """Return a reference, with the id of an application in lower case (recorded of a task).

    A resource id, as pools may have it, stays as it is [S].
    """
    given = str(reference["applicationId"])
    return {**reference, "applicationId": given if "/" in given else given.lower()}


def _is_windows(spec: Json) -> bool:
    agent = part(spec, "virtualMachineConfiguration").get("nodeAgentSKUId")
    return "windows" in str(agent).lower()


def _user_account(account: Json, *, windows: bool) -> Json:
    """Return a user account without the settings of the other operating system (recorded)."""
    other = "linuxUserConfiguration" if windows else "windowsUserConfiguration"
    shown = {"elevationLevel": "nonadmin", **account}
    shown.pop(other, None)
    if windows:
        shown["windowsUserConfiguration"] = {
            "loginMode": "batch",
            **part(account, "windowsUserConfiguration"),
        }
    return shown


def _machine(machine: Json) -> Json:
    return _completed(
        machine,
        imageReference=image,
        osDisk=_os_disk,
        dataDisks=_data_disk,
        nodePlacementConfiguration=_spelt,
        securityProfile=_spelt,
    )


def image(reference: Json) -> Json:
    """Return an image reference; a marketplace image without a version is the latest."""
    if "publisher" not in reference:
        return reference
    return {**reference, "version": reference.get("version") or "latest"}


def _os_disk(disk: Json) -> Json:
    managed = {"storageAccountType": "standard_lrs", **part(disk, "managedDisk")}
    return {
        "caching": "None",
        **_spelt(disk),
        "ephemeralOSDiskSettings": _spelt(part(disk, "ephemeralOSDiskSettings")),
        "managedDisk": _spelt(managed),
    }


def _data_disk(disk: Json) -> Json:
    """Return a data disk: its caching is in lower case, unlike that of an OS disk (recorded)."""
    given = disk.get("storageAccountType") or "standard_lrs"
    managed = _spelt({"storageAccountType": given, **part(disk, "managedDisk")})
    return {
        **disk,
        "caching": str(disk.get("caching") or "none").lower(),
        "storageAccountType": managed["storageAccountType"],  # until 2025-06-01; since then in
        "managedDisk": managed,
    }


def _network(network: Json) -> Json:
    shown = {
        "dynamicVNetAssignmentScope": "none",
        "enableAcceleratedNetworking": False,
        **_spelt(network),
    }
    return _completed(
        shown, endpointConfiguration=_endpoints, publicIPAddressConfiguration=_public_addresses
    )


def _endpoints(configuration: Json) -> Json:
    return _completed(configuration, inboundNATPools=_nat_pool)


def _nat_pool(nat_pool: Json) -> Json:
    return _completed(
        nat_pool, networkSecurityGroupRules=lambda rule: {"sourcePortRanges": ["*"], **rule}
    )


def _public_addresses(addresses: Json) -> Json:
    shown = _spelt({"provision": "BatchManaged", **addresses})
    families: Any = addresses.get("ipFamilies")
    if isinstance(families, list):  # IPv4 first, however they were sent (recorded)
        shown["ipFamilies"] = sorted(map(str, cast("list[Any]", families)))
    return shown


def start_task(spec: Json) -> Json:
    """Return a start task."""
    shown = {"userIdentity": USER, "maxTaskRetryCount": 0, "waitForSuccess": True}
    return {**shown, **_filled(spec)}


def job(spec: Json) -> Json:
    """Return the body of a job, or of the job specification of a schedule."""
    shown: Json = {
        "priority": 0,
        "maxParallelTasks": -1,
        "allowTaskPreemption": False,
        "usesTaskDependencies": False,
        "onAllTasksComplete": "noaction",
        "onTaskFailure": "noaction",
        **_filled(spec),
        "constraints": _spelt(
            {
                "maxWallClockTime": FOREVER_TEXT,
                "maxTaskRetryCount": 0,
                **part(spec, "constraints"),
            }
        ),
        "poolInfo": _completed(part(spec, "poolInfo"), autoPoolSpecification=_auto_pool),
    }
    return _completed(
        shown, jobManagerTask=_manager, jobPreparationTask=_preparation, jobReleaseTask=_release
    )


def _auto_pool(auto: Json) -> Json:
    return _completed({"keepAlive": False, **auto}, pool=pool_specification)


def _manager(spec: Json) -> Json:
    return {
        "killJobOnCompletion": True,
        "runExclusive": True,
        "allowLowPriorityNode": True,
        **task(spec, 0),
    }


def _preparation(task: Json) -> Json:
    return {
        "id": PREPARATION_ID,
        "userIdentity": USER,
        "waitForSuccess": True,
        "rerunOnNodeRebootAfterSuccess": True,
        **_filled(task),
        "constraints": task_constraints(part(task, "constraints"), 0),
    }


def _release(task: Json) -> Json:
    return {
        "id": RELEASE_ID,
        "userIdentity": USER,
        "maxWallClockTime": _RELEASE_TIME,
        "retentionTime": _RETENTION,
        **_spelt(_filled(task)),
    }


def schedule(times: Json) -> Json:
    """Return the schedule of a job schedule."""
    return _spelt(times)


def task(spec: Json, retries: int) -> Json:
    """Return the body of a task; `retries` is the maxTaskRetryCount of its job."""
    return {
        "requiredSlots": 1,
        "userIdentity": USER,
        **_completed(
            _filled(spec), outputFiles=_output_file, applicationPackageReferences=_package
        ),
        "constraints": task_constraints(part(spec, "constraints"), retries),
    }


def task_constraints(given: Json, retries: int) -> Json:
    """Return the constraints of a task of any kind."""
    defaults: Json = {
        "maxWallClockTime": FOREVER_TEXT,
        "retentionTime": _RETENTION,
        "maxTaskRetryCount": retries,
    }
    return {**defaults, **_spelt(given)} if given else defaults


def _output_file(output: Json) -> Json:
    return _completed(output, uploadOptions=_spelt)
