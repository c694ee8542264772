"""Behaviour of the emulator that no page of the documentation decides, by area.

The kind of a note is its reason: pages disagree, it was seen on the service, tests of an SDK that
run against the service expect it, or all sources are silent and the choice is ours. Reports of
users stand at the end: a test says for each that the emulator behaves as reported, and where a
report is not followed, the reason stands in the notes by area, with the report as its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AreaKind(StrEnum):
    """Why the documentation does not decide."""

    DISAGREE = "disagree"
    OBSERVED = "observed"
    TESTED = "tested by an SDK"
    OURS = "our choice"


@dataclass(frozen=True, slots=True)
class Area:
    """Notes on one subject, and the prefixes of the operation names that they apply to."""

    title: str
    operations: tuple[str, ...]
    notes: tuple[tuple[AreaKind, str], ...]


# fmt: off
AREAS: tuple[Area, ...] = (
    Area(
        "Requests",
        ("",),
        (
            (AreaKind.OURS, "The `Content-Type` of a body is ignored: a body that is not JSON is refused."),
            (AreaKind.DISAGREE, "The status of a task added in a collection is `Success`; the description has `success`."),
            (AreaKind.DISAGREE, "A request body may have up to 1 MiB."),
            (AreaKind.OBSERVED, "The `Location` of every new job is `<account>/jobs/job-1`."),
            (AreaKind.OBSERVED, "`ocp-batch-file-url` is percent-encoded as a whole, and `ocp-batch-file-isdirectory` is `True` or `False`."),
            (AreaKind.OBSERVED, "The text of an error ends with the lines RequestId and Time."),
            (AreaKind.OBSERVED, "Header names have the case of the service: `ETag`, `Content-Length`, `DataServiceId`, but `request-id`."),
            (AreaKind.OBSERVED, "Query parameters with a blank value may be signed, as the SDKs for Java and JavaScript do, or not, as that for Python."),
            (AreaKind.OBSERVED, "Empty lists are absent from answers, except `certificateReferences` that were sent."),
            (AreaKind.DISAGREE, "Empty lists of a start task are absent, too; a test of the SDK for .NET expects those that were sent."),
            (AreaKind.OBSERVED, "The reason for a page size below 1 is `MaxResults cannot be less than 1`."),
            (AreaKind.OBSERVED, "ETags are sent without quotes and accepted with and without them."),
            (AreaKind.OBSERVED, "Requests change ETags; the end of a task or job, stopresize and disableautoscale do not."),
            (AreaKind.TESTED, "A body is checked before the pool, node, job or task of the request is looked for."),
            (AreaKind.OURS, "While the disk of the emulator is full, requests get 503 `ServerBusy` with the reason."),
            (AreaKind.OURS, "In a filter an absent property satisfies no comparison, including `ne`."),
        ),
    ),
    Area(
        "Nodes and resizing",
        ("Pool_", "ComputeNode", "Account_"),
        (
            (AreaKind.DISAGREE, "A failed start task leaves its node in `starttaskfailed`, not `unusable`."),
            (AreaKind.DISAGREE, "The root directory of a node is `<node>/tasks`."),
            (AreaKind.DISAGREE, "Nodes whose start task failed are rebooted and reimaged like working ones."),
            (AreaKind.DISAGREE, "Nodes of any pool are reimaged; the docs say only cloud service ones."),
            (AreaKind.OBSERVED, "Unusable nodes are not rebooted: 409 `NodeStateUnusable`."),
            (AreaKind.OURS, "Nodes that do not work yet are removed first, then the least busy ones."),
            (AreaKind.OURS, "A failed resize keeps its targets; nodes still in creation are removed."),
            (AreaKind.OURS, "Cores of a VM size are read from its name, 1 if the name does not state them; otherwise nodes have at most four task slots per core."),
            (AreaKind.OURS, "The `default` node communication mode is `simplified`."),
            (AreaKind.OBSERVED, "A pool without nodes has no `currentNodeCommunicationMode`."),
            (AreaKind.OBSERVED, "A node has `ipv6Address` only in a dual-stack pool, though the models of 2025-06-01 require it."),
            (AreaKind.OURS, "A process that leaves the process group of its task lives as long as the node."),
            (AreaKind.OURS, "removenodes with an unknown node removes none: 404 `NodeNotFound`."),
            (AreaKind.OURS, "A deallocated node counts towards the targets and has lost its disk."),
            (AreaKind.OURS, "Nodes unusable without errors, or for a full disk, reboot after a minute."),
            (AreaKind.OBSERVED, "Durations, sizes and most words are returned in canonical form: `PT600S` as PT10M, `Standard_D2s_v3` in lower case, `spread` as Spread."),
            (AreaKind.OBSERVED, "The listed images are those of an account in Batch service mode on 2026-02-03; images whose support has ended since are accepted, and refused by `--strict-pools`."),
            (AreaKind.OBSERVED, "A `containerConfiguration` on an image without `DockerCompatible` is refused; images of galleries have no list of capabilities and are accepted."),
            (AreaKind.TESTED, "A user account without `elevationLevel` is `nonadmin`, and on Windows has the login mode `batch`; a user of Linux is shown with uid and gid, without the private key."),
            (AreaKind.TESTED, "A user account for another operating system is refused in a new pool, before the image is looked up; a change of a pool adds the user without those settings."),
            (AreaKind.TESTED, "updateproperties without a node communication mode sets `default`."),
            (AreaKind.TESTED, "Service logs are uploaded to `ACCOUNT-DIGITS/POOL/NODE/REQUEST`, with the id of the pool in lower case."),
            (AreaKind.TESTED, "The log that a node still writes is uploaded for any period that begins later."),
            (AreaKind.OURS, "A VM size is accepted if Azure sells it and Batch is not known to refuse it; `--vm-size` adds names, `--any-machine` looks up neither sizes nor images."),
            (AreaKind.OURS, "Jobs of one priority are served in the order of their creation, whatever `jobDefaultOrder` says."),
            (AreaKind.OURS, "A metadata security protocol in Enforce mode answers 403 to Scheduled Events; with an access control profile they pass."),
            (AreaKind.OURS, "A subnet or an image of a gallery is accepted with a shared key; `--strict-pools` refuses it as Azure does."),
            (AreaKind.DISAGREE, "With `--strict-pools` a subnet is refused with 400 `InvalidPropertyValue`, as tests of the SDK for .NET expect; those of that for JavaScript expect 403 `Forbidden`."),
            (AreaKind.DISAGREE, "Nodes of a pool of an api-version before 2024-07-01 have an endpoint for SSH by default; the docs say that pools created since 30 November 2025 have none."),
            (AreaKind.OURS, "Remote login settings, and the inbound endpoints of pools that have NAT pools, name 127.0.0.1 and a port where nothing listens."),
            (AreaKind.OURS, "In a pool with `noPublicIPAddresses` the nodes have no inbound endpoints."),
            (AreaKind.OURS, "A request for the remote login settings of a node without an endpoint for SSH or RDP is refused with `OperationNotValidOnNode`: the docs say that there is none, and not what the service answers."),
            (AreaKind.OURS, "Users of nodes are stored without their passwords; nobody can sign in."),
            (AreaKind.OURS, "After a crash nodes that worked are as before, with their disks."),
        ),
    ),
    Area(
        "Spot nodes",
        ("ComputeNode_Get", "ComputeNode_List", "Pool_Resize"),
        (
            (AreaKind.OURS, "A spot node gets tasks until it is evicted, also during the notice."),
            (AreaKind.OURS, "A task can ask for evictions of its node with the environment setting `BATCH_EMULATOR_EVICTIONS`, a JSON list of `[after, notice, away]` in seconds since the start of an attempt; `BATCH_EMULATOR_EVICTED` counts them."),
            (AreaKind.OURS, "A preempted node returns at once, or after the time of `--capacity-away`."),
        ),
    ),
    Area(
        "Autoscale",
        ("Pool_EnableAutoScale", "Pool_DisableAutoScale", "Pool_EvaluateAutoScale", "Pool_Add"),
        (
            (AreaKind.OBSERVED, "A formula is evaluated when the pool is added and when scaling is enabled."),
            (AreaKind.DISAGREE, "Results have the full names of targets, also if the formula uses short ones."),
            (AreaKind.OBSERVED, "Evaluations fail with 200; undefined names are errors of the evaluation."),
            (AreaKind.OBSERVED, "Fractions of nodes are cut off, in results too: 2.9 is 2. A negative number is 0."),
            (AreaKind.DISAGREE, "A formula sees a sample 15 seconds after it was taken; the article says a minute."),
            (AreaKind.DISAGREE, "GetSample of a time frame requires 70 % of the samples if the formula gives no percentage."),
            (AreaKind.DISAGREE, "`$CPUPercent` goes from 0 to 1 and percentages of samples from 0 to 100."),
            (AreaKind.DISAGREE, "A metric in arithmetic is its newest sample, 0 without one."),
            (AreaKind.OURS, "`$CPUPercent` is the share of the pool's task slots that is taken."),
            (AreaKind.OURS, "Metrics of memory, disk and network are 0."),
            (AreaKind.OURS, "Samples are kept for a day; samples that were due while the emulator was down equal the last one."),
            (AreaKind.OURS, "avg, min, max of nothing and `val` outside of a vector are 0."),
            (AreaKind.OURS, "`weekday` of a Sunday is 7, percentile is linear and goes from 0 to 100."),
            (AreaKind.OURS, "Formulas nest 50 deep and may use 250,000 elements of vectors."),
            (AreaKind.OURS, "An evaluation that is due during a resize waits for its end."),
            (AreaKind.OURS, "The same targets resize again when the last resize fell short of them."),
            (AreaKind.OURS, "A new formula alone waits for the next evaluation."),
            (AreaKind.OURS, "Disabling autoscale keeps the targets, and succeeds if it is disabled already."),
            (AreaKind.OURS, "A resize of a pool with autoscale is refused: 409 OperationNotValidOnPool."),
        ),
    ),
    Area(
        "Mounts",
        ("Pool_Add",),
        (
            (AreaKind.OURS, "A container is mounted by blobfuse2 if that is on the PATH and /dev/fuse can be opened."),
            (AreaKind.OURS, "Else a container is mirrored on the node: synchronized every 10 s and around tasks."),
            (AreaKind.OURS, "If a task replaces the mount point of a mirror, synchronization stops; no blob is deleted."),
            (AreaKind.OURS, "Files whose names are not UTF-8 stay on the node and are not uploaded."),
            (AreaKind.OURS, "A container of more than 100,000 blobs is not mounted; the last writer wins."),
            (AreaKind.OURS, "Every user-assigned identity has access to the account of `--storage-account`, to no other."),
            (AreaKind.OURS, "With it, mounts, resource and output files and service logs take an `identityReference`."),
            (AreaKind.OBSERVED, "A failed mount makes the node unusable with `MountConfigurationError`."),
            (AreaKind.OURS, "A mounted share is a link: all nodes and REST see the same files."),
            (AreaKind.OURS, "An NFS export is the folder `nfs/HOST/PATH` of the data dir, created if missing."),
            (AreaKind.OURS, "CIFS `//host/share` likewise; on `*.file.*` it is a share of Azure Files."),
            (AreaKind.OURS, "Nested mounts make the node unusable; the pool is accepted."),
            (AreaKind.OURS, "Files of mounts are not listed among the files of their node."),
        ),
    ),
    Area(
        "Application packages",
        ("Application_", "Pool_Add", "Task_Add"),
        (
            (AreaKind.OBSERVED, "A refused reference of a pool is named with its reason as one value of the error."),
            (AreaKind.OBSERVED, "A package is stored in `applications/IDVERSIONTIME`, with the time of storing."),
            (AreaKind.DISAGREE, "`AZ_BATCH_APP_PACKAGE_…` keeps the case of the application's id."),
            (AreaKind.TESTED, "References show the id of an application in lower case."),
            (AreaKind.OURS, "References show a resource id of an application as it was sent."),
            (AreaKind.OBSERVED, "A reference without a version also sets a variable without one."),
            (AreaKind.OURS, "A missing package of a task is a user error."),
            (AreaKind.OURS, "Unpacked files have the modes of their zip file, else 0644."),
            (AreaKind.OURS, "An application without a name is listed with its id as name."),
        ),
    ),
    Area(
        "Certificates",
        ("Certificate_",),
        (
            (AreaKind.OBSERVED, "`Location` of a new certificate has `ThumbprintAlgorithm=…,Thumbprint=…`; its `url` has both names in lower case."),
            (AreaKind.OBSERVED, "Certificates are `sha1-THUMBPRINT.pfx` and `….pfx.pw` in the tasks' folder."),
            (AreaKind.OURS, "A PFX is not opened: thumbprint and password are not checked, publicData is absent."),
            (AreaKind.TESTED, "A deleted certificate is `deleting` for a while (`--delete-seconds`), then gone or, if a pool uses it, `deletefailed`; until then its deletion cannot be cancelled: 409 `CertificateBeingDeleted`."),
            (AreaKind.OURS, "Until then it is not deleted or added again, and no pool can name it: the same error."),
        ),
    ),
    Area(
        "Containers",
        ("Pool_Add", "Task_Add"),
        (
            (AreaKind.OBSERVED, "A container task on another pool ends with `ContainerPoolNotSupported`."),
            (AreaKind.OBSERVED, "Containers run as the user of the task, not as that of their image (nextflow#2126)."),
            (AreaKind.OURS, "Without a container engine, nodes of container pools are unusable with that error."),
            (AreaKind.OURS, "Containers share the network of this machine unless their options name one."),
            (AreaKind.OURS, "A container has PATH and HOME of its image unless the settings name them."),
            (AreaKind.DISAGREE, "A container's command is passed to its entry point; on an older page it replaces that."),
            (AreaKind.OBSERVED, "containerRunOptions are read as `docker create` of Docker 28 reads them, and refused as it does."),
            (AreaKind.OURS, "`$AZ_BATCH_…` in containerRunOptions is replaced in each word; other variables stay as they are."),
            (AreaKind.OURS, "The container has another name on this machine; a node gives the one of `--name` to one container at a time."),
            (AreaKind.OURS, "`--rm` and `--pull` have no effect: containers are removed, and images are pulled before."),
            (AreaKind.OURS, "Without GPUs on this machine, nodes of sizes with GPUs ignore `--gpus` and `--runtime nvidia`."),
            (AreaKind.OURS, "A registry with an identity, or without a password, has the logins of the engine on this machine."),
            (AreaKind.OURS, "Passwords of registries are stored, and returned by no operation."),
            (AreaKind.OURS, "`criCompatible` pools run the same engine as `dockerCompatible` ones."),
            (AreaKind.OURS, "Statistics of a container task count the engine's client, not the container."),
            (AreaKind.OURS, "A container ended by request has the exit code that the engine gives, such as 137."),
        ),
    ),
    Area(
        "Jobs",
        ("Job_",),
        (
            (AreaKind.DISAGREE, "When a job is terminated its active tasks stay active."),
            (AreaKind.OBSERVED, "A job without tasks whose `onAllTasksComplete` is `terminatejob` stays active for a minute after its creation, so that tasks can be added."),
            (AreaKind.OURS, "That minute begins anew when the job is changed or enabled; a job whose tasks are completed ends at once, while the service looks once a minute."),
            (AreaKind.OBSERVED, "A disabled job whose `onAllTasksComplete` is `terminatejob` completes when all of its tasks are completed (batch-shipyard#227)."),
            (AreaKind.OURS, "A disabled job without tasks stays disabled, whatever its `onAllTasksComplete`."),
            (AreaKind.OBSERVED, "The `terminateReason` of a job that ends with its tasks is `AllTasksCompleted`; the description has `AllTasksComplete`."),
            (AreaKind.OBSERVED, "Since 2024-02-01 the body of a PUT of a job or schedule may contain an id, which is ignored."),
            (AreaKind.OURS, "Since 2024-02-01 a PUT of a job, schedule or task may contain all properties of an answer; those that cannot change are ignored."),
            (AreaKind.OBSERVED, "The status of preparation and release tasks of a job that has none is refused: 409 `JobPreparationTaskOrReleaseTaskNotSpecified`."),
            (AreaKind.TESTED, "An enabled job without tasks is `active` before `onAllTasksComplete` ends it."),
            (AreaKind.TESTED, "`previousState` is never `disabling`, `enabling` or `terminating`: a disabled job was `active` before."),
            (AreaKind.OURS, "Directories of preparation and release tasks stay as long as their job and their node, whatever the retentionTime."),
            (AreaKind.OURS, "An exclusive job manager task waits for an empty node; no task makes room for it."),
            (AreaKind.OURS, "Preemption ends the youngest tasks of the lowest priority, as few as needed."),
            (AreaKind.OURS, "A task that is preempted by another job is requeued, which counts."),
            (AreaKind.OURS, "Slots freed by preemption are not given to lower priorities."),
            (AreaKind.OBSERVED, "A deleted pool, job or schedule is `deleting` for a while, and its id is refused (doAzureParallel#97, batch-shipyard#251, nextflow#2110)."),
            (AreaKind.OURS, "`--delete-seconds` says how long, 2 by default; running tasks end at once with `TaskEnded`, and nodes leave at once."),
            (AreaKind.OURS, "AZ_BATCH_AUTHENTICATION_TOKEN gives access to its job and tasks, while the task runs."),
        ),
    ),
    Area(
        "Auto pools",
        ("Job_Add", "JobSchedule_Add", "Job_Patch", "Job_Update"),
        (
            (AreaKind.OBSERVED, "A job of a schedule shows the id of its auto pool beside the specification, also in `poolInfo`."),
            (AreaKind.OURS, "An auto pool sent back as it was shown, without its secrets, is the same pool."),
            (AreaKind.OBSERVED, "The id of an auto pool ends with a separator and a GUID of 36 characters: `cascade.py` of Batch Shipyard cuts 37 off (batch-shipyard#33)."),
            (AreaKind.OURS, "The separator is `_`, and the GUID has capitals."),
            (AreaKind.OURS, "Another auto pool for a job is refused with `InvalidPropertyValue`."),
            (AreaKind.OURS, "A job that leaves its auto pool for another pool deletes it, unless keepAlive is set."),
        ),
    ),
    Area(
        "Job schedules",
        ("JobSchedule_", "Job_ListFromJobSchedule"),
        (
            (AreaKind.TESTED, "`previousState` is never `terminating`: a completed schedule was `active` before."),
            (AreaKind.OURS, "The jobs of a schedule are `SCHEDULE:job-1`, `SCHEDULE:job-2`, ..."),
            (AreaKind.OURS, "Jobs of a schedule count towards the quota and are created beyond it."),
            (AreaKind.OURS, "Recurrences count from the first due job; of missed ones the newest counts."),
            (AreaKind.OURS, "A schedule that is enabled again creates the job that is due within its window."),
            (AreaKind.OURS, "A single job that misses its startWindow is never created; its schedule ends."),
            (AreaKind.OURS, "A schedule without recurrence has a second job only for a new doNotRunUntil."),
        ),
    ),
    Area(
        "Tasks",
        ("Task_",),
        (
            (AreaKind.TESTED, "A running task that is terminated is `completed` in the next request, and can be reactivated."),
            (AreaKind.DISAGREE, "A terminated task and one past maxWallClockTime are `usererror` / `TaskEnded`."),
            (AreaKind.OURS, "A termination is answered when the task is completed, as the docs say, but after 10 s at the latest."),
            (AreaKind.OBSERVED, "A reactivation is answered without `DataServiceId`."),
            (AreaKind.DISAGREE, "Task directories are kept for 7 days by default, not without limit."),
            (AreaKind.OURS, "A task that runs again on another node leaves its folder on the first, as long as its job."),
            (AreaKind.DISAGREE, "The default scope of autoUser is `pool`; nodes fill by `spread`."),
            (AreaKind.OURS, "A userIdentity with two users or none is `InvalidPropertyValue`, and so is a start task whose user account the pool does not have."),
            (AreaKind.OURS, "A task whose user account its node does not have ends with `CommandLaunchFailed`."),
            (AreaKind.OBSERVED, "A command ended by a signal has the negative signal number as its exit code."),
            (AreaKind.OURS, "Command lines are split as a POSIX shell would, and executed without one."),
            (AreaKind.OURS, "A task that returns to active goes to the front of its job's queue."),
            (AreaKind.OURS, "A task that fits nowhere delays only tasks that need as many slots."),
            (AreaKind.OURS, "`retaineddata`: retained tasks are checked once a minute."),
            (AreaKind.OURS, "After a crash, interrupted start tasks and tasks run again, uncounted."),
            (AreaKind.OURS, "Resource and output files wait five minutes for storage on this machine that does not run."),
        ),
    ),
    Area(
        "Dependencies and exit conditions",
        ("Task_Add", "Task_Delete", "Task_Reactivate", "Task_Terminate"),
        (
            (AreaKind.OURS, "An exit code listed in exitCodes outranks a range that contains it."),
            (AreaKind.OURS, "jobAction `disable` lets the other running tasks end."),
            (AreaKind.OBSERVED, "dependsOn without usesTaskDependencies is `UnsupportedProperty`, and empty lists pass (azure-sdk-for-python#27859, #42399); its `Reason` is ours."),
            (AreaKind.OURS, "A task waits for ids that no task has yet."),
            (AreaKind.OURS, "Tasks wait anew for a deleted or reactivated parent; an unblocked task stays so. On the service a task may run at once whose parent was deleted and added again (Azure/Batch#129)."),
            (AreaKind.OURS, "A task ended by request takes no job action; its dependency action counts."),
            (AreaKind.OURS, "The exit option `default` covers the end by request and by wall clock."),
            (AreaKind.OURS, "The ranges of one dependsOn may have 64,000 characters together."),
        ),
    ),
    Area(
        "Multi-instance tasks",
        ("Task_Add", "Task_ListSubtasks"),
        (
            (AreaKind.OURS, "A multi-instance task reserves free nodes while its pool has enough nodes."),
            (AreaKind.OURS, "A multi-instance task counts as one task towards maxParallelTasks."),
            (AreaKind.OURS, "When the primary ends, subtasks and all their processes are killed, then the task ends."),
            (AreaKind.OURS, "stdout.txt of a primary begins with the output of its coordination command."),
            (AreaKind.OURS, "maxWallClockTime of a multi-instance task covers both commands of the primary."),
            (AreaKind.DISAGREE, "Common resource files go to the task's folder; subtask n works in folder n below it."),
            (AreaKind.OURS, "A node has an address 127.x.y.z, which tasks find in `BATCH_EMULATOR_NODE_IP` (ours)."),
            (AreaKind.OURS, "`AZ_BATCH_TASK_SHARED_DIR` differs from node to node: nodes are folders."),
            (AreaKind.OURS, "In containers, each instance has one container, and both of its commands run in it."),
            (AreaKind.OURS, "An instance's container lives from its coordination command to the end of the task."),
            (AreaKind.OURS, "Its first process is `/bin/sh`: a multi-instance task needs an image that has one."),
            (AreaKind.OURS, "The entry point of the image gets each of both commands; containerRunOptions count once."),
        ),
    ),
    Area(
        "Files",
        ("File_",),
        (
            (AreaKind.DISAGREE, "Files of a task after its retention time are `TaskFilesUnavailable`."),
            (AreaKind.OBSERVED, "A range of a file (`ocp-range`) is answered 200, not 206."),
            (AreaKind.OURS, "An output file pattern without a match is no failure."),
        ),
    ),
    Area(
        "Usage and statistics",
        ("Pool_ListUsageMetrics", "Pool_GetAllLifetimeStatistics", "Job_GetAllLifetimeStatistics"),
        (
            (AreaKind.OURS, "Usage counts nodes from `starting` to `leavingpool`, and is kept for 90 days."),
            (AreaKind.OURS, "Nodes continue to count for the usage metrics while the emulator is down."),
            (AreaKind.OURS, "Statistics cover the pools, jobs and tasks that exist, up to the request."),
            (AreaKind.OURS, "I/O operations are system calls; disk space and network are not measured."),
        ),
    ),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class UserReport:
    """What a thread on GitHub reports, and the test in `tests/` that shows the same."""

    thread: str
    behaviour: str
    test: str


_REPORTS = "contract/test_reports.py::test_"
_DEPENDENCIES = "contract/test_task_dependencies.py::test_"

# fmt: off
REPORTS: tuple[UserReport, ...] = (
    UserReport("nextflow-io/nextflow#2110", "The ID of a deleted job is refused for a while.", "contract/test_slow_deletion.py::test_job_is_deleting_and_its_tasks_have_ended"),
    UserReport("Azure/doAzureParallel#97", "So is that of a deleted pool.", "contract/test_slow_deletion.py::test_pool_is_deleting_until_its_time_has_passed"),
    UserReport("Azure/batch-shipyard#227", "A job that an exit option disabled completes, because its tasks have ended.", f"{_REPORTS}disabled_job_whose_tasks_have_ended_completes"),
    UserReport("Azure/batch-shipyard#251", "A pool is not deleted instantly, and is listed until then.", "contract/test_slow_deletion.py::test_pool_is_deleting_until_its_time_has_passed"),
    UserReport("Azure/azure-sdk-for-python#42399", "`dependsOn` is `UnsupportedProperty` for a job without `usesTaskDependencies`.", f"{_DEPENDENCIES}dependencies_need_a_job_that_uses_them"),
    UserReport("Azure/azure-sdk-for-python#27859", "A collection refuses only the task with dependencies, and empty lists pass.", f"{_DEPENDENCIES}collection_refuses_only_the_task_with_dependencies"),
    UserReport("Azure/azure-batch-cli-extensions#66", "A file group without a linked storage account is refused.", "contract/test_defaults.py::test_auto_storage_files_are_refused_without_a_linked_account"),
    UserReport("CDCgov/cfa_azure", "Container tasks with `--name` run.", "contract/test_containers.py::test_name_is_taken_while_a_container_of_the_node_has_it"),
    UserReport("SDK for Java 11.2", "Header names have the case that the SDK reads.", "contract/test_envelope.py::test_header_names_have_the_case_of_the_service"),
    UserReport("SDKs for Java 11.2 and JavaScript 10.2", "Blank query values are signed, or not.", "contract/test_auth.py::test_blank_query_value_is_accepted_signed_or_not"),
    UserReport("Azure/azure-sdk-for-python#38099", "`poolInfo` of a job has no ID of its auto pool, `executionInfo` has.", f"{_REPORTS}job_shows_the_id_of_its_auto_pool_in_execution_info_only"),
    UserReport("Azure/azure-sdk-for-python#26037", "A task stays active if the one that it depends on fails.", f"{_REPORTS}task_after_a_failed_one_stays_active"),
    UserReport("Azure/BatchExplorer#1451", "Ranges of IDs ignore leading zeros.", f"{_REPORTS}range_ignores_leading_zeros_of_ids"),
    UserReport("Azure/Batch#117", "A task with more slots than a node is accepted and stays active.", f"{_REPORTS}task_with_more_slots_than_a_node_is_added_and_stays_active"),
    UserReport("Azure/batch-shipyard#96", "A job whose tasks have ended stays active.", f"{_REPORTS}job_without_tasks_left_stays_active"),
    UserReport("Azure/azure-sdk-for-net#8764", "A job that ends with its tasks refuses tasks once it was empty for a while.", "contract/test_jobs.py::test_minute_of_an_empty_job_goes_on_after_a_restart"),
    UserReport("CDCgov/cfa_azure#171", "Exit options with a job action need a job that performs them.", f"{_REPORTS}exit_options_need_a_job_that_performs_them"),
    UserReport("Azure/azure-powershell#12512", "`id startswith 'dev'` is no filter.", f"{_REPORTS}startswith_is_a_function_of_filters_and_no_operator"),
    UserReport("Azure/BatchExplorer#829", "Failed tasks are found by `executionInfo/exitCode ne 0 and state eq 'Completed'`.", f"{_REPORTS}filter_by_exit_code_ignores_the_case_of_a_state"),
    UserReport("Azure/Batch#171", "A task shows the defaults of its constraints.", f"{_REPORTS}task_without_constraints_shows_their_defaults"),
    UserReport("Azure/aztk#297", "The error for a job of the same ID has these words.", f"{_REPORTS}second_job_of_an_id_is_named_as_existing"),
    UserReport("Azure/azure-powershell#12147", "A value of another type is `InvalidRequestBody`, with a reason.", f"{_REPORTS}value_of_another_type_is_not_syntactically_valid"),
    UserReport("Azure/BatchExplorer#1270", "The pool of a job can change only while it is disabled.", f"{_REPORTS}pool_of_a_job_changes_only_while_it_is_disabled"),
    UserReport("MicrosoftDocs/azure-docs#53298", "Files of a task that has not started are `OperationInvalidForCurrentState`.", f"{_REPORTS}files_of_a_task_that_has_not_run_are_refused"),
    UserReport("microsoft/haste#124", "Files of a node that does not work are `NodeNotReady`.", f"{_REPORTS}files_of_an_unusable_node_are_refused"),
    UserReport("microsoft/CromwellOnAzure#243", "Files of an unusable node cannot be read.", f"{_REPORTS}files_of_an_unusable_node_are_refused"),
    UserReport("nextflow-io/nextflow#7312", "The error of a resize stays until the next resize.", f"{_REPORTS}resize_error_stays_until_the_next_resize"),
    UserReport("Azure/batch-shipyard: convoy/batch.py", "Errors have the words that Batch Shipyard compares.", f"{_REPORTS}messages_are_those_that_batch_shipyard_compares"),
    UserReport("nextflow-io/nextflow#3866", "A formula with a time in nanoseconds fails to evaluate.", "unit/emulator/autoscale/test_language.py::test_nine_digits_after_the_second_are_not_read"),
    UserReport("Azure/Batch#151", "Fractions of nodes are cut off.", "unit/emulator/autoscale/test_language.py::test_targets_are_truncated_and_at_least_zero"),
    UserReport("Azure/doAzureParallel#215", "Results of a formula have this form.", "unit/emulator/autoscale/test_language.py::test_published_result_of_a_user_is_reproduced"),
)
# fmt: on
