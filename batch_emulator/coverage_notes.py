"""Where the emulator does what no page of the documentation decides, by area.

Each note has its kind: the documentation says it twice and differently, it was seen on the service,
or all sources are silent and the choice is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Why the documentation does not decide."""

    DISAGREE = "disagree"
    OBSERVED = "observed"
    OURS = "our choice"


@dataclass(frozen=True, slots=True)
class Area:
    """Notes on one subject, and the operations that they concern, by how their names begin."""

    title: str
    operations: tuple[str, ...]
    notes: tuple[tuple[Kind, str], ...]


# fmt: off
AREAS: tuple[Area, ...] = (
    Area(
        "Requests",
        ("",),
        (
            (Kind.OURS, "The type of a body (`Content-Type`) is not looked at: it is JSON or refused."),
            (Kind.DISAGREE, "A task added in a collection is `Success`; the description spells it `success`."),
            (Kind.DISAGREE, "A request body may have 4 MiB."),
            (Kind.OBSERVED, "The text of an error ends with the lines RequestId and Time."),
            (Kind.OBSERVED, "ETags are sent without quotes and accepted with and without them."),
            (Kind.OURS, "In a filter a property that is absent satisfies no comparison, `ne` included."),
        ),
    ),
    Area(
        "Nodes and resizing",
        ("Pool_", "ComputeNode", "Account_"),
        (
            (Kind.DISAGREE, "A failed start task leaves its node in `starttaskfailed`, not `unusable`."),
            (Kind.DISAGREE, "The root directory of a node is `<node>/tasks`."),
            (Kind.DISAGREE, "Nodes whose start task failed are rebooted and reimaged like working ones."),
            (Kind.DISAGREE, "Nodes of any pool are reimaged; the docs say only cloud service ones."),
            (Kind.OBSERVED, "Unusable nodes are not rebooted: 409 `NodeStateUnusable`."),
            (Kind.OURS, "Nodes leave in the order of what is lost: not working yet, then least busy."),
            (Kind.OURS, "A resize that fails keeps its targets; nodes still in creation are given up."),
            (Kind.OURS, "Cores of a VM size are read from its name, 1 where it tells none."),
            (Kind.OURS, "The `default` node communication mode is `simplified`."),
            (Kind.OURS, "What leaves the process group of a task lives as long as the node does."),
            (Kind.OURS, "removenodes with an unknown node removes none: 404 `NodeNotFound`."),
            (Kind.OURS, "A deallocated node counts towards the targets and has lost its disk."),
            (Kind.OURS, "Nodes unusable without errors, or for a full disk, reboot after a minute."),
            (Kind.OURS, "Remote login settings, and the inbound endpoints of pools that have NAT pools, name 127.0.0.1 and a port where nobody answers."),
            (Kind.OURS, "Users of nodes are kept without their passwords; nobody can sign in."),
            (Kind.OURS, "After a crash nodes that worked are as they were, with their disks."),
        ),
    ),
    Area(
        "Spot nodes",
        ("ComputeNode_Get", "ComputeNode_List", "Pool_Resize"),
        (
            (Kind.OURS, "A spot node gets tasks until it is evicted, also during the notice."),
            (Kind.OURS, "A preempted node comes back at once, or as `--capacity-away` says."),
        ),
    ),
    Area(
        "Autoscale",
        ("Pool_EnableAutoScale", "Pool_DisableAutoScale", "Pool_EvaluateAutoScale", "Pool_Add"),
        (
            (Kind.OBSERVED, "A formula is evaluated when the pool is added and when scaling is enabled."),
            (Kind.DISAGREE, "The full names of targets are in results, whatever the formula calls them."),
            (Kind.OBSERVED, "Evaluations fail with 200; undefined names are errors of the evaluation."),
            (Kind.OBSERVED, "Fractions of nodes are cut off: 2.9 is 2. Less than none is none."),
            (Kind.DISAGREE, "`$CPUPercent` goes from 0 to 1 and percentages of samples from 0 to 100."),
            (Kind.DISAGREE, "A metric in arithmetic is its newest sample, 0 without one."),
            (Kind.OURS, "`$CPUPercent` is the part of the pool's task slots that is taken."),
            (Kind.OURS, "Metrics of memory, disk and network are 0."),
            (Kind.OURS, "Samples are kept for a day; while no emulator runs they stay what they were."),
            (Kind.OURS, "avg, min, max of nothing and `val` outside of a vector are 0."),
            (Kind.OURS, "`weekday` of a Sunday is 7, percentile is linear and goes from 0 to 100."),
            (Kind.OURS, "Formulas nest 50 deep and may use 250,000 elements of vectors."),
            (Kind.OURS, "An evaluation that falls into a resize waits for its end."),
            (Kind.OURS, "The same targets resize again when the last resize fell short of them."),
            (Kind.OURS, "A new formula alone waits for the next evaluation."),
            (Kind.OURS, "Disabling automatic scaling keeps the targets, and succeeds where it is off."),
            (Kind.OURS, "Targets of an automatic pool set by hand: 409 OperationNotValidOnPool."),
        ),
    ),
    Area(
        "Mounts",
        ("Pool_Add",),
        (
            (Kind.OURS, "A container is mounted by blobfuse2 where it is on the PATH and /dev/fuse may be opened."),
            (Kind.OURS, "Else a container is copied to the node, in step every 10 s and around tasks."),
            (Kind.OURS, "A mirrored container whose mount point was replaced is not followed; no blob is deleted."),
            (Kind.OURS, "Files whose names are no UTF-8 stay on the node and become no blobs."),
            (Kind.OURS, "A container of more than 100,000 blobs is not mounted; whoever writes last wins."),
            (Kind.OURS, "Every user-assigned identity has access to the account of `--storage-account`, to no other."),
            (Kind.OURS, "With it, mounts, resource and output files and service logs take an `identityReference`."),
            (Kind.OBSERVED, "A mount that fails is `MountConfigurationError` of a node that is unusable."),
            (Kind.OURS, "A share that is mounted is a link: all nodes and REST see the same files."),
            (Kind.OURS, "An NFS export is the folder `nfs/HOST/PATH` of the data dir, made when missing."),
            (Kind.OURS, "CIFS `//host/share` likewise; on `*.file.*` it is a share of Azure Files."),
            (Kind.OURS, "Mounts below each other make the node unusable; the pool is accepted."),
            (Kind.OURS, "Files of mounts are not shown among the files of their node."),
        ),
    ),
    Area(
        "Application packages",
        ("Application_", "Pool_Add", "Task_Add"),
        (
            (Kind.OBSERVED, "A package lies in `applications/IDVERSIONTIME`, the time is that of storing it."),
            (Kind.DISAGREE, "`AZ_BATCH_APP_PACKAGE_…` keeps the case of the application's id."),
            (Kind.OBSERVED, "Without a version in the reference there is a variable without one, too."),
            (Kind.OURS, "A package that a task wants and cannot have is the user's error."),
            (Kind.OURS, "Unpacked files have the modes of their zip file, else 0644."),
            (Kind.OURS, "An application without a name is listed with its id as name."),
        ),
    ),
    Area(
        "Certificates",
        ("Certificate_",),
        (
            (Kind.OBSERVED, "Certificates are `sha1-THUMBPRINT.pfx` and `….pfx.pw` in the tasks' folder."),
            (Kind.OURS, "A PFX is not opened: thumbprint and password are believed, no publicData."),
            (Kind.OURS, "A certificate that no pool references is deleted at once."),
        ),
    ),
    Area(
        "Containers",
        ("Pool_Add", "Task_Add"),
        (
            (Kind.OBSERVED, "A container task on another pool ends with `ContainerPoolNotSupported`."),
            (Kind.OURS, "Without a container engine, nodes of container pools are unusable with it."),
            (Kind.OURS, "Containers share the network of this machine unless their options name one."),
            (Kind.OURS, "A container has PATH and HOME of its image unless the settings name them."),
            (Kind.DISAGREE, "A container's command is what its entry point gets; an older page lets it replace that."),
            (Kind.OURS, "containerRunOptions may not name or label the container: tasks then fail."),
            (Kind.OURS, "Passwords of registries are kept, and given back by no operation."),
            (Kind.OURS, "`criCompatible` pools run the same engine as `dockerCompatible` ones."),
            (Kind.OURS, "Statistics of a container task count the engine's client, not the container."),
            (Kind.OURS, "A container ended by request has the exit code that the engine gives, such as 137."),
        ),
    ),
    Area(
        "Jobs",
        ("Job_",),
        (
            (Kind.DISAGREE, "When a job is terminated its active tasks stay active."),
            (Kind.OURS, "An exclusive job manager task waits for an empty node; none is cleared for it."),
            (Kind.OURS, "Preemption ends the youngest tasks of the lowest priority, as few as needed."),
            (Kind.OURS, "A task that is preempted by another job is requeued, which counts."),
            (Kind.OURS, "Slots that come free by preemption are kept from lower priorities."),
            (Kind.OURS, "Once nothing of a deleted job runs its tasks are gone at once; it is `deleting` till all are."),
            (Kind.OURS, "AZ_BATCH_AUTHENTICATION_TOKEN opens what lies below its job, while the task runs."),
        ),
    ),
    Area(
        "Auto pools",
        ("Job_Add", "JobSchedule_Add", "Job_Patch", "Job_Update"),
        (
            (Kind.OURS, "An auto pool sent back as it was shown, without its secrets, is the same pool."),
            (Kind.OURS, "The id of an auto pool is its prefix, `_` and a GUID in capitals."),
            (Kind.OURS, "Another auto pool for a job is refused with `InvalidPropertyValue`."),
            (Kind.OURS, "A job that leaves its auto pool for another pool takes it along, if not kept."),
        ),
    ),
    Area(
        "Job schedules",
        ("JobSchedule_", "Job_ListFromJobSchedule"),
        (
            (Kind.OURS, "The jobs of a schedule are `SCHEDULE:job-1`, `SCHEDULE:job-2`, ..."),
            (Kind.OURS, "Jobs that a schedule makes count towards the quota and are made beyond it."),
            (Kind.OURS, "Recurrences count from the first due job; of missed ones the newest counts."),
            (Kind.OURS, "A schedule that is enabled again makes the job that is due within its window."),
            (Kind.OURS, "A single job that misses its startWindow is never made; its schedule ends."),
            (Kind.OURS, "A schedule without recurrence has a second job only for a new doNotRunUntil."),
        ),
    ),
    Area(
        "Tasks",
        ("Task_",),
        (
            (Kind.DISAGREE, "A terminated task and one past maxWallClockTime are `usererror` / `TaskEnded`."),
            (Kind.DISAGREE, "Task directories are kept for 7 days by default, not for ever."),
            (Kind.OURS, "A task that runs again on another node leaves its folder on the first, as long as its job."),
            (Kind.DISAGREE, "The default scope of autoUser is `pool`; nodes fill by `spread`."),
            (Kind.OBSERVED, "A command ended by a signal has the negative signal number as its exit code."),
            (Kind.OURS, "Command lines are split as a POSIX shell would, and executed without one."),
            (Kind.OURS, "A task that comes back to active goes to the front of its job's queue."),
            (Kind.OURS, "Tasks that fit nowhere hold up only those that need as many slots."),
            (Kind.OURS, "`retaineddata`: whether tasks are still retained is looked at once a minute."),
            (Kind.OURS, "After a crash start tasks and tasks that ran run again, uncounted."),
        ),
    ),
    Area(
        "Dependencies and exit conditions",
        ("Task_Add", "Task_Delete", "Task_Reactivate", "Task_Terminate"),
        (
            (Kind.OURS, "An exit code listed in exitCodes outranks a range that contains it."),
            (Kind.OURS, "jobAction `disable` lets the other running tasks end."),
            (Kind.OURS, "Ids that a task depends on and that no task has yet are waited for."),
            (Kind.OURS, "A deleted or reactivated parent is waited for anew; who was set free stays so."),
            (Kind.OURS, "A task ended by request takes no job action; its dependency action counts."),
            (Kind.OURS, "The exit option `default` covers the end by request and by wall clock."),
            (Kind.OURS, "The ranges of one dependsOn may have 64,000 characters together."),
        ),
    ),
    Area(
        "Multi-instance tasks",
        ("Task_Add", "Task_ListSubtasks"),
        (
            (Kind.OURS, "A multi-instance task keeps free nodes from later tasks while its pool has enough."),
            (Kind.OURS, "A multi-instance task counts as one task towards maxParallelTasks."),
            (Kind.OURS, "When the primary ends, subtasks and all they started are killed, then the task ends."),
            (Kind.OURS, "stdout.txt of a primary begins with what its coordination command wrote."),
            (Kind.OURS, "maxWallClockTime of a multi-instance task covers both commands of the primary."),
            (Kind.DISAGREE, "Common resource files lie in the task's folder; subtask n works in folder n below it."),
            (Kind.OURS, "A node's address is a 127.x.y.z, told to tasks in `BATCH_EMULATOR_NODE_IP` (ours)."),
            (Kind.OURS, "`AZ_BATCH_TASK_SHARED_DIR` differs from node to node: nodes are folders."),
            (Kind.OURS, "In containers, each instance has one container, and both of its commands run in it."),
            (Kind.OURS, "An instance's container lives from its coordination command to the end of the task."),
            (Kind.OURS, "Its first process is `/bin/sh`: a multi-instance task needs an image that has one."),
            (Kind.OURS, "The entry point of the image gets each of both commands; containerRunOptions count once."),
        ),
    ),
    Area(
        "Files",
        ("File_",),
        (
            (Kind.DISAGREE, "Files of a task whose retention is over are `TaskFilesUnavailable`."),
            (Kind.OBSERVED, "A part of a file (`ocp-range`) is answered 200, not 206."),
            (Kind.OURS, "A pattern of an output file that matches nothing is no failure."),
        ),
    ),
    Area(
        "Usage and statistics",
        ("Pool_ListUsageMetrics", "Pool_GetAllLifetimeStatistics", "Job_GetAllLifetimeStatistics"),
        (
            (Kind.OURS, "Usage counts nodes from `starting` to `leavingpool`, and is kept for 90 days."),
            (Kind.OURS, "Nodes go on counting for the usage metrics while the emulator is down."),
            (Kind.OURS, "Statistics cover the pools, jobs and tasks that exist, up to the request."),
            (Kind.OURS, "I/O operations are system calls; disk space and network are not measured."),
        ),
    ),
)
# fmt: on
