# type: ignore - its imports are those of an environment of its own
"""Commands of `az batch` in one process: each start of az takes a second."""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
from functools import cache
from pathlib import Path

HOME = tempfile.TemporaryDirectory()
os.environ["AZURE_CONFIG_DIR"] = HOME.name
os.environ["AZURE_CORE_COLLECT_TELEMETRY"] = "0"

from azure.cli.core import get_default_cli  # noqa: E402 - reads the variables above
from steps import MANAGER, check, fresh, publish, resource, run, until  # noqa: E402

MANY = 250
WORK = Path(HOME.name)


class AzError(Exception):
    """The output of a failed az command."""


class _Errors(logging.Handler):
    def __init__(self):
        super().__init__(logging.ERROR)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def az(*words):
    """Run one command. Return its parsed output."""
    out, errors = io.StringIO(), _Errors()
    logger = logging.getLogger("cli")
    logger.addHandler(errors)
    cli = get_default_cli()
    try:
        code = cli.invoke(["batch", *map(str, words), "--output", "json"], out_file=out)
    except SystemExit as err:
        code = err.code
    finally:
        logger.removeHandler(errors)
    if code:
        raise AzError("\n".join(errors.lines) or f"az {words} ended with {code}")
    text = out.getvalue().strip()
    return json.loads(text) if text else None


def refused(part, *words):
    try:
        az(*words)
    except AzError as err:
        check(part in str(err), f"{part} is not in: {err}")
        return
    raise AssertionError(f"{words} should fail")


def document(name, body):
    path = WORK / f"{name}.json"
    path.write_text(json.dumps(body), encoding="utf-8")
    return path


def settled(pool_id, count):
    def ready():
        found = az("node", "list", "--pool-id", pool_id)
        calm = az("pool", "show", "--pool-id", pool_id)["allocationState"] == "steady"
        good = {n["state"] for n in found} <= {"idle", "running"}
        return (found,) if calm and good and len(found) == count else None

    return until(ready, f"{count} nodes")[0]


MACHINE = {
    "vmSize": "Standard_D4s_v3",
    "virtualMachineConfiguration": {
        "imageReference": {"publisher": "canonical", "offer": "ubuntu-24_04-lts", "sku": "server"},
        "nodeAgentSKUId": "batch.node.ubuntu 24.04",
    },
}


def new_pool(count=1, slots=4, **more):
    name = fresh("pool")
    body = {"id": name, "targetDedicatedNodes": count, "taskSlotsPerNode": slots}
    az("pool", "create", "--json-file", document(name, {**body, **MACHINE, **more}))
    settled(name, count)
    return name


@cache
def pool():
    return new_pool()


def job(pool_id=None, **more):
    name = fresh("job")
    info = {"poolId": pool_id or pool()} if "poolInfo" not in more else None
    az("job", "create", "--json-file", document(name, {"id": name, "poolInfo": info, **more}))
    return name


def wait(job_id, task_id):
    def done():
        found = az("task", "show", "--job-id", job_id, "--task-id", task_id)
        return found if found["state"] == "completed" else None

    return until(done, f"{task_id} is completed")


def add(job_id, task_id, command, **more):
    body = {"id": task_id, "commandLine": command, **more}
    az("task", "create", "--job-id", job_id, "--json-file", document(task_id, body))


def one(job_id, task_id, command, **more):
    add(job_id, task_id, command, **more)
    return wait(job_id, task_id)


def wait_job(job_id):
    def done():
        found = az("job", "show", "--job-id", job_id)
        return found["executionInfo"] if found["state"] == "completed" else None

    return until(done, f"{job_id} is completed")


def text(job_id, task_id, name="stdout.txt"):
    target = WORK / fresh("out")
    az("task", "file", "download", "--job-id", job_id, "--task-id", task_id, "--file-path", name,
       "--destination", target)  # fmt: skip
    return target.read_text()


@resource
def account():
    name = pool()
    check(az("pool", "supported-images", "list")[0]["osType"], "images are listed")
    counts = az("pool", "node-counts", "list")
    check(any(c["poolId"] == name and c["dedicated"]["total"] == 1 for c in counts), counts)


@resource
def pools():
    name = fresh("az")
    machine = (
        "--vm-size", "Standard_D4s_v3", "--image", "canonical:ubuntu-24_04-lts:server",
        "--node-agent-sku-id", "batch.node.ubuntu 24.04",
    )  # fmt: skip
    az(
        "pool", "create", "--id", name, *machine, "--target-dedicated-nodes", 1,
        "--task-slots-per-node", 4, "--start-task-command-line", "/bin/echo started",
        "--start-task-wait-for-success", "--metadata", "team=az", "--resize-timeout", "PT10M",
    )  # fmt: skip
    settled(name, 1)
    found = az("pool", "show", "--pool-id", name)
    check(found["taskSlotsPerNode"] == 4, found)
    check(found["metadata"][0]["value"] == "az", found)
    listed = az("pool", "list", "--filter", f"id eq '{name}'", "--select", "id,state")
    check(listed[0]["id"] == name and not listed[0].get("vmSize"), listed)
    az("pool", "resize", "--pool-id", name, "--target-dedicated-nodes", 2)
    settled(name, 2)
    az("pool", "set", "--pool-id", name, "--metadata", "a=b")
    check(az("pool", "show", "--pool-id", name)["metadata"][0]["name"] == "a", "it is set")
    az("pool", "delete", "--pool-id", name, "--yes")
    until(lambda: name not in {p["id"] for p in az("pool", "list")}, "the pool is gone")


@resource
def autoscale():
    name = new_pool()
    where = ("--pool-id", name, "--auto-scale-formula")
    az("pool", "autoscale", "enable", *where, "$TargetDedicatedNodes=2;")
    settled(name, 2)
    run = az("pool", "autoscale", "evaluate", *where, "$TargetDedicatedNodes=3;")
    check("$TargetDedicatedNodes=3" in run["results"], run)
    az("pool", "autoscale", "disable", "--pool-id", name)
    settled(name, 2)


@resource
def nodes():
    name = new_pool(2)
    node = az("node", "list", "--pool-id", name)[0]["id"]
    where = ("--pool-id", name, "--node-id", node)
    check(az("node", "show", *where)["id"] == node, "it is shown")
    check(az("node", "file", "list", *where), "it has files")
    az("node", "scheduling", "disable", *where)
    az("node", "scheduling", "enable", *where)
    az("node", "user", "create", *where, "--name", "me", "--password", "p4ssw0rd")
    az("node", "user", "delete", *where, "--user-name", "me", "--yes")
    az("node", "remote-login-settings", "show", *where)
    az("node", "reboot", *where)
    settled(name, 2)
    az("node", "delete", "--pool-id", name, "--node-list", node)
    check(node not in {n["id"] for n in settled(name, 1)}, "it is removed")


@resource
def jobs():
    name = fresh("az")
    az("job", "create", "--id", name, "--pool-id", pool(), "--priority", 5,
       "--job-max-task-retry-count", 1, "--uses-task-dependencies")  # fmt: skip
    az("job", "set", "--job-id", name, "--priority", "-5")
    found = az("job", "show", "--job-id", name)
    check((found["priority"], found["state"]) == (-5, "active"), found)
    az("job", "disable", "--job-id", name, "--disable-tasks", "requeue")
    until(lambda: az("job", "show", "--job-id", name)["state"] == "disabled", "disabled")
    az("job", "enable", "--job-id", name)
    az("job", "stop", "--job-id", name, "--terminate-reason", "enough")
    check(wait_job(name)["terminateReason"] == "enough", "the reason")
    az("job", "delete", "--job-id", name, "--yes")
    until(lambda: name not in {j["id"] for j in az("job", "list")}, "it is gone")


@resource
def job_preparation():
    name = job(jobPreparationTask={"commandLine": "/bin/true"},
               jobReleaseTask={"commandLine": "/bin/true"})  # fmt: skip
    one(name, "t", "/bin/true")
    [found] = az("job", "prep-release-status", "list", "--job-id", name)
    check(found["jobPreparationTaskExecutionInfo"]["exitCode"] == 0, found)


@resource
def tasks():
    name = job()
    bodies = [{"id": f"task{n:03}", "commandLine": "/bin/true"} for n in range(MANY)]
    # a JSON file of many tasks is added through the collection
    added = az("task", "create", "--job-id", name, "--json-file", document("tasks", bodies))
    check(len(added) == MANY, len(added))

    def done():
        counts = az("job", "task-counts", "show", "--job-id", name)["taskCounts"]
        return counts["succeeded"] == MANY

    until(done, "all tasks are completed")
    listed = az("task", "list", "--job-id", name, "--filter", "state eq 'completed'",
                "--select", "id,state")  # fmt: skip
    check(len(listed) == MANY, len(listed))
    az("task", "create", "--job-id", name, "--task-id", "fails", "--command-line",
       "/bin/sh -c 'exit $CODE'", "--environment-settings", "CODE=3",
       "--max-task-retry-count", 0)  # fmt: skip
    failed = wait(name, "fails")["executionInfo"]
    check(failed["exitCode"] == 3 and failed["result"].lower() == "failure", failed)
    az("task", "reactivate", "--job-id", name, "--task-id", "fails")
    wait(name, "fails")
    add(name, "long", "/bin/sleep 600")
    az("task", "stop", "--job-id", name, "--task-id", "long")
    wait(name, "long")
    az("task", "delete", "--job-id", name, "--task-id", "long", "--yes")
    refused("does not exist", "task", "show", "--job-id", name, "--task-id", "long")


@resource
def task_dependencies():
    name = job(usesTaskDependencies=True)
    add(name, "last", "/bin/true", dependsOn={"taskIds": ["a"]})
    add(name, "a", "/bin/true")
    last = wait(name, "last")["executionInfo"]
    check(wait(name, "a")["executionInfo"]["endTime"] <= last["startTime"], last)


@resource
def multi_instance():
    cluster = new_pool(2, slots=1, enableInterNodeCommunication=True)
    name = job(cluster)
    settings = {"numberOfInstances": 2, "coordinationCommandLine": "/bin/true"}
    one(name, "multi", "/bin/sh -c 'echo $AZ_BATCH_HOST_LIST'", multiInstanceSettings=settings)
    known = {n["ipAddress"] for n in az("node", "list", "--pool-id", cluster)}
    check(set(text(name, "multi").strip().split(",")) == known, known)
    found = az("task", "subtask", "list", "--job-id", name, "--task-id", "multi")
    found = found["value"] if isinstance(found, dict) else found
    check([(s["id"], s["exitCode"]) for s in found] == [(1, 0)], found)


@resource
def job_managers():
    token = {"access": ["job"]}
    manager = {"id": "manager", "commandLine": MANAGER, "killJobOnCompletion": False,
               "authenticationTokenSettings": token}  # fmt: skip
    name = job(jobManagerTask=manager, onAllTasksComplete="terminatejob")
    check(wait_job(name)["terminateReason"] == "AllTasksCompleted", "all done")
    found = {t["id"] for t in az("task", "list", "--job-id", name)}
    check(found == {"manager", "child"}, found)


@resource
def files():
    name = job()
    one(name, "files", "/bin/sh -c 'echo hello; echo x > made.txt'")
    where = ("--job-id", name, "--task-id", "files")
    names = {f["name"] for f in az("task", "file", "list", *where, "--recursive")}
    check({"stdout.txt", "wd/made.txt"} <= names, names)
    check(text(name, "files") == "hello\n", "stdout")
    # `task file show` of az 2.91 fails by itself: it walks a response object as if it were a dict
    az("task", "file", "delete", *where, "--file-path", "wd/made.txt", "--yes")


@resource
def schedules():
    name = fresh("schedule")
    body = {
        "id": name,
        "schedule": {"recurrenceInterval": "PT1H"},
        "jobSpecification": {"poolInfo": {"poolId": pool()}},
    }
    where = ("--job-schedule-id", name)
    az("job-schedule", "create", "--json-file", document("schedule", body))

    def recent():
        found = az("job-schedule", "show", *where)
        return (found.get("executionInfo") or {}).get("recentJob")

    until(recent, "the schedule makes a job")
    check(len(az("job", "list", *where)) == 1, "one job")
    az("job-schedule", "disable", *where)
    az("job-schedule", "enable", *where)
    az("job-schedule", "delete", *where, "--yes")


@resource
def auto_pools():
    specification = {"poolLifetimeOption": "job", "pool": {**MACHINE, "targetDedicatedNodes": 1}}
    name = job(poolInfo={"autoPoolSpecification": specification})
    made = az("job", "show", "--job-id", name)["executionInfo"]["poolId"]
    check(one(name, "t", "/bin/true")["executionInfo"]["exitCode"] == 0, "it runs there")
    az("job", "stop", "--job-id", name)
    until(lambda: made not in {p["id"] for p in az("pool", "list")}, "the pool goes with its job")


@resource
def applications():
    app = fresh("App")
    publish(app, "1.0", hello="hello 1.0")
    check(app in {a["id"] for a in az("application", "summary", "list")}, "it is listed")
    variable = f"AZ_BATCH_APP_PACKAGE_{app}_1.0".replace("-", "_").replace(".", "_")
    references = [{"applicationId": app, "version": "1.0"}]
    name = job(new_pool(applicationPackageReferences=references))
    one(name, "t", f"/bin/sh -c 'cat ${variable}/hello'")
    check(text(name, "t") == "hello 1.0", text(name, "t"))


@resource
def statistics():
    check(isinstance(az("pool", "usage-metrics", "list"), list), "usage of ended hours")


@resource
def errors():
    name = job()
    refused("does not exist", "pool", "show", "--pool-id", "absent")
    refused("does not exist", "job", "show", "--job-id", "absent")
    refused("already exists", "job", "create", "--id", name, "--pool-id", pool())
    add(name, "t", "/bin/true")
    refused("already exists", "task", "create", "--job-id", name, "--task-id", "t",
            "--command-line", "x")  # fmt: skip


run(client="azure-cli")
