"""Where the emulator does what no page of the documentation decides, by area.

Each note has its kind: the documentation says it twice and differently, it was seen on the service,
or all sources are silent and the choice is ours.
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
    """Notes on one subject, and the operations that they concern, by how their names begin."""

    title: str
    operations: tuple[str, ...]
    notes: tuple[tuple[AreaKind, str], ...]


# fmt: off
AREAS: tuple[Area, ...] = (
    Area(
        "Requests",
        ("",),
        (
            (AreaKind.OURS, "The type of a body (`Content-Type`) is not looked at: it is JSON or refused."),
            (AreaKind.DISAGREE, "A task added in a collection is `Success`; the description spells it `success`."),
            (AreaKind.DISAGREE, "A request body may have 4 MiB."),
            (AreaKind.OBSERVED, "The text of an error ends with the lines RequestId and Time."),
            (AreaKind.OBSERVED, "ETags are sent without quotes and accepted with and without them."),
            (AreaKind.OURS, "In a filter a property that is absent satisfies no comparison, `ne` included."),
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
            (AreaKind.OURS, "Nodes leave in the order of what is lost: not working yet, then least busy."),
            (AreaKind.OURS, "A resize that fails keeps its targets; nodes still in creation are given up."),
            (AreaKind.OURS, "Cores of a VM size are read from its name, 1 where it tells none."),
            (AreaKind.OURS, "The `default` node communication mode is `simplified`."),
            (AreaKind.OURS, "What leaves the process group of a task lives as long as the node does."),
            (AreaKind.OURS, "removenodes with an unknown node removes none: 404 `NodeNotFound`."),
            (AreaKind.OURS, "A deallocated node counts towards the targets and has lost its disk."),
            (AreaKind.OURS, "Nodes unusable without errors, or for a full disk, reboot after a minute."),
            (AreaKind.OURS, "Remote login settings, and the inbound endpoints of pools that have NAT pools, name 127.0.0.1 and a port where nobody answers."),
            (AreaKind.OURS, "Users of nodes are kept without their passwords; nobody can sign in."),
            (AreaKind.OURS, "After a crash nodes that worked are as they were, with their disks."),
        ),
    ),
    Area(
        "Spot nodes",
        ("ComputeNode_Get", "ComputeNode_List", "Pool_Resize"),
        (
            (AreaKind.OURS, "A spot node gets tasks until it is evicted, also during the notice."),
            (AreaKind.OURS, "A preempted node comes back at once, or as `--capacity-away` says."),
        ),
    ),
    Area(
        "Autoscale",
        ("Pool_EnableAutoScale", "Pool_DisableAutoScale", "Pool_EvaluateAutoScale", "Pool_Add"),
        (
            (AreaKind.OBSERVED, "A formula is evaluated when the pool is added and when scaling is enabled."),
            (AreaKind.DISAGREE, "The full names of targets are in results, whatever the formula calls them."),
            (AreaKind.OBSERVED, "Evaluations fail with 200; undefined names are errors of the evaluation."),
            (AreaKind.OBSERVED, "Fractions of nodes are cut off: 2.9 is 2. Less than none is none."),
            (AreaKind.DISAGREE, "`$CPUPercent` goes from 0 to 1 and percentages of samples from 0 to 100."),
            (AreaKind.DISAGREE, "A metric in arithmetic is its newest sample, 0 without one."),
            (AreaKind.OURS, "`$CPUPercent` is the part of the pool's task slots that is taken."),
            (AreaKind.OURS, "Metrics of memory, disk and network are 0."),
            (AreaKind.OURS, "Samples are kept for a day; while no emulator runs they stay what they were."),
            (AreaKind.OURS, "avg, min, max of nothing and `val` outside of a vector are 0."),
            (AreaKind.OURS, "`weekday` of a Sunday is 7, percentile is linear and goes from 0 to 100."),
            (AreaKind.OURS, "Formulas nest 50 deep and may use 250,000 elements of vectors."),
            (AreaKind.OURS, "An evaluation that falls into a resize waits for its end."),
            (AreaKind.OURS, "The same targets resize again when the last resize fell short of them."),
            (AreaKind.OURS, "A new formula alone waits for the next evaluation."),
            (AreaKind.OURS, "Disabling automatic scaling keeps the targets, and succeeds where it is off."),
            (AreaKind.OURS, "Targets of an automatic pool set by hand: 409 OperationNotValidOnPool."),
        ),
    ),
    Area(
        "Mounts",
        ("Pool_Add",),
        (
            (AreaKind.OURS, "A container is mounted by blobfuse2 where it is on the PATH and /dev/fuse may be opened."),
            (AreaKind.OURS, "Else a container is copied to the node, in step every 10 s and around tasks."),
            (AreaKind.OURS, "A mirrored container whose mount point was replaced is not followed; no blob is deleted."),
            (AreaKind.OURS, "Files whose names are no UTF-8 stay on the node and become no blobs."),
            (AreaKind.OURS, "A container of more than 100,000 blobs is not mounted; whoever writes last wins."),
            (AreaKind.OURS, "Every user-assigned identity has access to the account of `--storage-account`, to no other."),
            (AreaKind.OURS, "With it, mounts, resource and output files and service logs take an `identityReference`."),
            (AreaKind.OBSERVED, "A mount that fails is `MountConfigurationError` of a node that is unusable."),
            (AreaKind.OURS, "A share that is mounted is a link: all nodes and REST see the same files."),
            (AreaKind.OURS, "An NFS export is the folder `nfs/HOST/PATH` of the data dir, made when missing."),
            (AreaKind.OURS, "CIFS `//host/share` likewise; on `*.file.*` it is a share of Azure Files."),
            (AreaKind.OURS, "Mounts below each other make the node unusable; the pool is accepted."),
            (AreaKind.OURS, "Files of mounts are not shown among the files of their node."),
        ),
    ),
    Area(
        "Application packages",
        ("Application_", "Pool_Add", "Task_Add"),
        (
            (AreaKind.OBSERVED, "A package lies in `applications/IDVERSIONTIME`, the time is that of storing it."),
            (AreaKind.DISAGREE, "`AZ_BATCH_APP_PACKAGE_…` keeps the case of the application's id."),
            (AreaKind.OBSERVED, "Without a version in the reference there is a variable without one, too."),
            (AreaKind.OURS, "A package that a task wants and cannot have is the user's error."),
            (AreaKind.OURS, "Unpacked files have the modes of their zip file, else 0644."),
            (AreaKind.OURS, "An application without a name is listed with its id as name."),
        ),
    ),
    Area(
        "Certificates",
        ("Certificate_",),
        (
            (AreaKind.OBSERVED, "Certificates are `sha1-THUMBPRINT.pfx` and `….pfx.pw` in the tasks' folder."),
            (AreaKind.OURS, "A PFX is not opened: thumbprint and password are believed, no publicData."),
            (AreaKind.OURS, "A certificate that no pool references is deleted at once."),
        ),
    ),
    Area(
        "Containers",
        ("Pool_Add", "Task_Add"),
        (
            (AreaKind.OBSERVED, "A container task on another pool ends with `ContainerPoolNotSupported`."),
            (AreaKind.OURS, "Without a container engine, nodes of container pools are unusable with it."),
            (AreaKind.OURS, "Containers share the network of this machine unless their options name one."),
            (AreaKind.OURS, "A container has PATH and HOME of its image unless the settings name them."),
            (AreaKind.DISAGREE, "A container's command is what its entry point gets; an older page lets it replace that."),
            (AreaKind.OURS, "containerRunOptions may not name or label the container: tasks then fail."),
            (AreaKind.OURS, "Passwords of registries are kept, and given back by no operation."),
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
            (AreaKind.OURS, "An exclusive job manager task waits for an empty node; none is cleared for it."),
            (AreaKind.OURS, "Preemption ends the youngest tasks of the lowest priority, as few as needed."),
            (AreaKind.OURS, "A task that is preempted by another job is requeued, which counts."),
            (AreaKind.OURS, "Slots that come free by preemption are kept from lower priorities."),
            (AreaKind.OURS, "Once nothing of a deleted job runs its tasks are gone at once; it is `deleting` till all are."),
            (AreaKind.OURS, "AZ_BATCH_AUTHENTICATION_TOKEN opens what lies below its job, while the task runs."),
        ),
    ),
    Area(
        "Auto pools",
        ("Job_Add", "JobSchedule_Add", "Job_Patch", "Job_Update"),
        (
            (AreaKind.OURS, "An auto pool sent back as it was shown, without its secrets, is the same pool."),
            (AreaKind.OURS, "The id of an auto pool is its prefix, `_` and a GUID in capitals."),
            (AreaKind.OURS, "Another auto pool for a job is refused with `InvalidPropertyValue`."),
            (AreaKind.OURS, "A job that leaves its auto pool for another pool takes it along, if not kept."),
        ),
    ),
    Area(
        "Job schedules",
        ("JobSchedule_", "Job_ListFromJobSchedule"),
        (
            (AreaKind.OURS, "The jobs of a schedule are `SCHEDULE:job-1`, `SCHEDULE:job-2`, ..."),
            (AreaKind.OURS, "Jobs that a schedule makes count towards the quota and are made beyond it."),
            (AreaKind.OURS, "Recurrences count from the first due job; of missed ones the newest counts."),
            (AreaKind.OURS, "A schedule that is enabled again makes the job that is due within its window."),
            (AreaKind.OURS, "A single job that misses its startWindow is never made; its schedule ends."),
            (AreaKind.OURS, "A schedule without recurrence has a second job only for a new doNotRunUntil."),
        ),
    ),
    Area(
        "Tasks",
        ("Task_",),
        (
            (AreaKind.DISAGREE, "A terminated task and one past maxWallClockTime are `usererror` / `TaskEnded`."),
            (AreaKind.DISAGREE, "Task directories are kept for 7 days by default, not for ever."),
            (AreaKind.OURS, "A task that runs again on another node leaves its folder on the first, as long as its job."),
            (AreaKind.DISAGREE, "The default scope of autoUser is `pool`; nodes fill by `spread`."),
            (AreaKind.OBSERVED, "A command ended by a signal has the negative signal number as its exit code."),
            (AreaKind.OURS, "Command lines are split as a POSIX shell would, and executed without one."),
            (AreaKind.OURS, "A task that comes back to active goes to the front of its job's queue."),
            (AreaKind.OURS, "Tasks that fit nowhere hold up only those that need as many slots."),
            (AreaKind.OURS, "`retaineddata`: whether tasks are still retained is looked at once a minute."),
            (AreaKind.OURS, "After a crash start tasks and tasks that ran run again, uncounted."),
        ),
    ),
    Area(
        "Dependencies and exit conditions",
        ("Task_Add", "Task_Delete", "Task_Reactivate", "Task_Terminate"),
        (
            (AreaKind.OURS, "An exit code listed in exitCodes outranks a range that contains it."),
            (AreaKind.OURS, "jobAction `disable` lets the other running tasks end."),
            (AreaKind.OURS, "Ids that a task depends on and that no task has yet are waited for."),
            (AreaKind.OURS, "A deleted or reactivated parent is waited for anew; who was set free stays so."),
            (AreaKind.OURS, "A task ended by request takes no job action; its dependency action counts."),
            (AreaKind.OURS, "The exit option `default` covers the end by request and by wall clock."),
            (AreaKind.OURS, "The ranges of one dependsOn may have 64,000 characters together."),
        ),
    ),
    Area(
        "Multi-instance tasks",
        ("Task_Add", "Task_ListSubtasks"),
        (
            (AreaKind.OURS, "A multi-instance task keeps free nodes from later tasks while its pool has enough."),
            (AreaKind.OURS, "A multi-instance task counts as one task towards maxParallelTasks."),
            (AreaKind.OURS, "When the primary ends, subtasks and all they started are killed, then the task ends."),
            (AreaKind.OURS, "stdout.txt of a primary begins with what its coordination command wrote."),
            (AreaKind.OURS, "maxWallClockTime of a multi-instance task covers both commands of the primary."),
            (AreaKind.DISAGREE, "Common resource files lie in the task's folder; subtask n works in folder n below it."),
            (AreaKind.OURS, "A node's address is a 127.x.y.z, told to tasks in `BATCH_EMULATOR_NODE_IP` (ours)."),
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
            (AreaKind.DISAGREE, "Files of a task whose retention is over are `TaskFilesUnavailable`."),
            (AreaKind.OBSERVED, "A part of a file (`ocp-range`) is answered 200, not 206."),
            (AreaKind.OURS, "A pattern of an output file that matches nothing is no failure."),
        ),
    ),
    Area(
        "Usage and statistics",
        ("Pool_ListUsageMetrics", "Pool_GetAllLifetimeStatistics", "Job_GetAllLifetimeStatistics"),
        (
            (AreaKind.OURS, "Usage counts nodes from `starting` to `leavingpool`, and is kept for 90 days."),
            (AreaKind.OURS, "Nodes go on counting for the usage metrics while the emulator is down."),
            (AreaKind.OURS, "Statistics cover the pools, jobs and tasks that exist, up to the request."),
            (AreaKind.OURS, "I/O operations are system calls; disk space and network are not measured."),
        ),
    ),
)
# fmt: on
