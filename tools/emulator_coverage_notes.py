"""Behaviour of the emulator that no page of the documentation decides, by area.

The kind of a note is its reason: pages disagree, it was seen on the service, or all sources are
silent and the choice is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AreaKind(StrEnum):
    """Why the documentation does not decide."""

    DISAGREE = "disagree"
    OBSERVED = "observed"
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
            (AreaKind.OBSERVED, "ETags are sent without quotes and accepted with and without them."),
            (AreaKind.OBSERVED, "Requests change ETags; the end of a task or job, stopresize and disableautoscale do not."),
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
            (AreaKind.OURS, "A process that leaves the process group of its task lives as long as the node."),
            (AreaKind.OURS, "removenodes with an unknown node removes none: 404 `NodeNotFound`."),
            (AreaKind.OURS, "A deallocated node counts towards the targets and has lost its disk."),
            (AreaKind.OURS, "Nodes unusable without errors, or for a full disk, reboot after a minute."),
            (AreaKind.OBSERVED, "Durations, sizes and most words are returned in canonical form: `PT600S` as PT10M, `Standard_D2s_v3` in lower case, `spread` as Spread."),
            (AreaKind.OBSERVED, "The listed images are those of an account in Batch service mode on 2026-02-03; images whose support has ended since are accepted, and refused by `--strict-pools`."),
            (AreaKind.OBSERVED, "A `containerConfiguration` on an image without `DockerCompatible` is refused; images of galleries have no list of capabilities and are accepted."),
            (AreaKind.OURS, "A VM size is accepted if Azure sells it and Batch is not known to refuse it; `--vm-size` adds names, `--any-machine` looks up neither sizes nor images."),
            (AreaKind.OURS, "Jobs of one priority are served in the order of their creation, whatever `jobDefaultOrder` says."),
            (AreaKind.OURS, "A metadata security protocol in Enforce mode answers 403 to Scheduled Events; with an access control profile they pass."),
            (AreaKind.OURS, "A subnet or an image of a gallery is accepted with a shared key; `--strict-pools` refuses it as Azure does."),
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
            (AreaKind.OBSERVED, "A package is stored in `applications/IDVERSIONTIME`, with the time of storing."),
            (AreaKind.DISAGREE, "`AZ_BATCH_APP_PACKAGE_…` keeps the case of the application's id."),
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
            (AreaKind.OBSERVED, "Certificates are `sha1-THUMBPRINT.pfx` and `….pfx.pw` in the tasks' folder."),
            (AreaKind.OURS, "A PFX is not opened: thumbprint and password are not checked, publicData is absent."),
            (AreaKind.OURS, "A certificate that no pool references is deleted at once."),
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
            (AreaKind.OURS, "containerRunOptions may not name or label the container: tasks then fail."),
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
            (AreaKind.OURS, "Directories of preparation and release tasks stay as long as their job and their node, whatever the retentionTime."),
            (AreaKind.OURS, "An exclusive job manager task waits for an empty node; no task makes room for it."),
            (AreaKind.OURS, "Preemption ends the youngest tasks of the lowest priority, as few as needed."),
            (AreaKind.OURS, "A task that is preempted by another job is requeued, which counts."),
            (AreaKind.OURS, "Slots freed by preemption are not given to lower priorities."),
            (AreaKind.OURS, "When no task of a deleted job runs, its tasks disappear at once; it is `deleting` until they are erased."),
            (AreaKind.OURS, "AZ_BATCH_AUTHENTICATION_TOKEN gives access to its job and tasks, while the task runs."),
        ),
    ),
    Area(
        "Auto pools",
        ("Job_Add", "JobSchedule_Add", "Job_Patch", "Job_Update"),
        (
            (AreaKind.OURS, "An auto pool sent back as it was shown, without its secrets, is the same pool."),
            (AreaKind.OURS, "The id of an auto pool is its prefix, `_` and a GUID in capitals."),
            (AreaKind.OURS, "Another auto pool for a job is refused with `InvalidPropertyValue`."),
            (AreaKind.OURS, "A job that leaves its auto pool for another pool deletes it, unless keepAlive is set."),
        ),
    ),
    Area(
        "Job schedules",
        ("JobSchedule_", "Job_ListFromJobSchedule"),
        (
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
            (AreaKind.DISAGREE, "A terminated task and one past maxWallClockTime are `usererror` / `TaskEnded`."),
            (AreaKind.DISAGREE, "Task directories are kept for 7 days by default, not without limit."),
            (AreaKind.OURS, "A task that runs again on another node leaves its folder on the first, as long as its job."),
            (AreaKind.DISAGREE, "The default scope of autoUser is `pool`; nodes fill by `spread`."),
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
            (AreaKind.OURS, "A task waits for ids that no task has yet."),
            (AreaKind.OURS, "Tasks wait anew for a deleted or reactivated parent; an unblocked task stays so."),
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
