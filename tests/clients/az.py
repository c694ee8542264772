# type: ignore - its imports are those of an environment of its own
"""`az batch`: what its users type, in one process because every start of az costs a second."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

HOME = tempfile.TemporaryDirectory()
os.environ["AZURE_CONFIG_DIR"] = HOME.name
os.environ["AZURE_CORE_COLLECT_TELEMETRY"] = "0"

from azure.cli.core import get_default_cli  # noqa: E402 - reads the variables above
from steps import check, finish, step, told, until  # noqa: E402

POOL, JOB, MANY = "az-pool", "az-job", 250
WORK = Path(HOME.name)


class AzError(Exception):
    """What az printed when it failed."""


class _Errors(logging.Handler):
    def __init__(self):
        super().__init__(logging.ERROR)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def az(*words):
    """One command; the parsed answer."""
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


def missing(err):
    text = str(err)
    if "NotImplemented" not in text:
        return None
    words = text.replace(":", " ").split()
    return words[words.index("Operation") + 1] if "Operation" in words else text


def optional():
    return step(missing)


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


def nodes(count):
    def ready():
        found = az("node", "list", "--pool-id", POOL)
        calm = az("pool", "show", "--pool-id", POOL)["allocationState"] == "steady"
        good = {n["state"] for n in found} <= {"idle", "running"}
        return found if calm and good and len(found) == count else None

    return until(ready, f"{count} nodes")


def pool():
    check(az("pool", "supported-images", "list")[0]["osType"], "images are listed")
    az(
        "pool", "create", "--id", POOL, "--vm-size", "Standard_D4s_v3", "--target-dedicated-nodes",
        1, "--image", "debian:debian-12:12", "--node-agent-sku-id", "batch.node.debian 12",
        "--task-slots-per-node", 4, "--start-task-command-line", "/bin/echo started",
        "--start-task-wait-for-success", "--metadata", "team=az", "--resize-timeout", "PT10M",
    )  # fmt: skip
    refused("already exists", "pool", "create", "--id", POOL, "--vm-size", "small", "--image",
            "debian:debian-12:12", "--node-agent-sku-id", "batch.node.debian 12")  # fmt: skip
    refused("does not exist", "pool", "show", "--pool-id", "absent")
    nodes(1)
    found = az("pool", "show", "--pool-id", POOL)
    check(found["taskSlotsPerNode"] == 4, found)
    check(found["metadata"][0]["value"] == "az", found)
    listed = az("pool", "list", "--filter", f"id eq '{POOL}'", "--select", "id,state")
    check(listed[0]["id"] == POOL and not listed[0].get("vmSize"), listed)
    az("pool", "resize", "--pool-id", POOL, "--target-dedicated-nodes", 2)
    nodes(2)
    az("pool", "set", "--pool-id", POOL, "--metadata", "a=b")
    check(az("pool", "show", "--pool-id", POOL)["metadata"][0]["name"] == "a", "it is set")
    counts = az("pool", "node-counts", "list")
    check(any(c["poolId"] == POOL and c["dedicated"]["total"] == 2 for c in counts), counts)
    with optional():
        az("pool", "autoscale", "enable", "--pool-id", POOL, "--auto-scale-formula",
           "$TargetDedicatedNodes=2;")  # fmt: skip
        run = az("pool", "autoscale", "evaluate", "--pool-id", POOL, "--auto-scale-formula",
                 "$TargetDedicatedNodes=3;")  # fmt: skip
        check("$TargetDedicatedNodes=3" in run["results"], run)
    with optional():
        az("pool", "autoscale", "disable", "--pool-id", POOL)
    with optional():
        az("pool", "usage-metrics", "list")
    with optional():
        az("application", "summary", "list")


def job():
    az("job", "create", "--id", JOB, "--pool-id", POOL, "--priority", 5,
       "--job-max-task-retry-count",
       1, "--uses-task-dependencies")  # fmt: skip
    refused("already exists", "job", "create", "--id", JOB, "--pool-id", POOL)
    az("job", "set", "--job-id", JOB, "--priority", "-5")
    found = az("job", "show", "--job-id", JOB)
    check((found["priority"], found["state"]) == (-5, "active"), found)
    check(JOB in {j["id"] for j in az("job", "list")}, "it is listed")
    az("job", "disable", "--job-id", JOB, "--disable-tasks", "requeue")
    until(lambda: az("job", "show", "--job-id", JOB)["state"] == "disabled", "disabled")
    az("job", "enable", "--job-id", JOB)


def tasks():
    bodies = [{"id": f"task{n:03}", "commandLine": "/bin/true"} for n in range(MANY)]
    # a JSON file of many tasks is added through the collection
    added = az("task", "create", "--job-id", JOB, "--json-file", document("tasks", bodies))
    check(len(added) == MANY, len(added))

    def done():
        counts = az("job", "task-counts", "show", "--job-id", JOB)["taskCounts"]
        return counts["succeeded"] == MANY

    until(done, "all tasks are completed")
    listed = az("task", "list", "--job-id", JOB, "--filter", "state eq 'completed'",
                "--select", "id,state")  # fmt: skip
    check(len(listed) == MANY, len(listed))
    az("task", "create", "--job-id", JOB, "--task-id", "files", "--command-line",
       "/bin/sh -c 'echo $WORD; echo x > made.txt'", "--environment-settings", "WORD=hello",
       "--max-task-retry-count", 0)  # fmt: skip
    refused("already exists", "task", "create", "--job-id", JOB, "--task-id", "files",
            "--command-line", "x")  # fmt: skip
    wait("files")
    where = ("--job-id", JOB, "--task-id", "files")
    names = {f["name"] for f in az("task", "file", "list", *where, "--recursive")}
    check({"stdout.txt", "wd/made.txt"} <= names, names)
    target = WORK / "out.txt"
    az("task", "file", "download", *where, "--file-path", "stdout.txt", "--destination", target)
    check(target.read_text() == "hello\n", target.read_text())
    # `task file show` of az 2.91 fails by itself: it walks a response object as if it were a dict
    az("task", "file", "delete", *where, "--file-path", "wd/made.txt", "--yes")
    az("task", "create", "--job-id", JOB, "--task-id", "fails", "--command-line",
       "/bin/sh -c 'exit 3'", "--max-task-retry-count", 0)  # fmt: skip
    failed = wait("fails")["executionInfo"]
    check(failed["exitCode"] == 3 and failed["result"].lower() == "failure", failed)
    az("task", "reactivate", "--job-id", JOB, "--task-id", "fails")
    wait("fails")
    az("task", "create", "--job-id", JOB, "--task-id", "long", "--command-line", "/bin/sleep 600")
    az("task", "stop", "--job-id", JOB, "--task-id", "long")
    wait("long")
    az("task", "delete", "--job-id", JOB, "--task-id", "long", "--yes")
    refused("does not exist", "task", "show", "--job-id", JOB, "--task-id", "long")
    with optional():
        az("task", "subtask", "list", "--job-id", JOB, "--task-id", "fails")


def wait(task_id):
    def done():
        task = az("task", "show", "--job-id", JOB, "--task-id", task_id)
        return task if task["state"] == "completed" else None

    return until(done, f"{task_id} is completed")


def node_operations():
    node = az("node", "list", "--pool-id", POOL)[0]["id"]
    where = ("--pool-id", POOL, "--node-id", node)
    check(az("node", "show", *where)["id"] == node, "it is shown")
    check(az("node", "file", "list", *where), "it has files")
    with optional():
        az("node", "scheduling", "disable", *where)
        az("node", "scheduling", "enable", *where)
    with optional():
        az("node", "user", "create", *where, "--name", "me", "--password", "p4ssw0rd")
        az("node", "user", "delete", *where, "--user-name", "me", "--yes")
    with optional():
        az("node", "remote-login-settings", "show", *where)
    az("node", "reboot", *where)
    nodes(2)
    with optional():
        az("node", "delete", "--pool-id", POOL, "--node-list", node)
        nodes(1)


def schedules():
    body = {
        "id": "az-schedule",
        "schedule": {"recurrenceInterval": "PT1H"},
        "jobSpecification": {"poolInfo": {"poolId": POOL}},
    }
    with optional():
        az("job-schedule", "create", "--json-file", document("schedule", body))

        def recent():
            found = az("job-schedule", "show", "--job-schedule-id", "az-schedule")
            return (found.get("executionInfo") or {}).get("recentJob")

        until(recent, "the schedule makes a job")
        check(len(az("job", "list", "--job-schedule-id", "az-schedule")) == 1, "one job")
        az("job-schedule", "disable", "--job-schedule-id", "az-schedule")
        az("job-schedule", "enable", "--job-schedule-id", "az-schedule")
        az("job-schedule", "delete", "--job-schedule-id", "az-schedule", "--yes")


def end():
    az("job", "stop", "--job-id", JOB, "--terminate-reason", "enough")
    until(lambda: az("job", "show", "--job-id", JOB)["state"] == "completed", "completed")
    az("job", "delete", "--job-id", JOB, "--yes")
    az("pool", "delete", "--pool-id", POOL, "--yes")
    until(lambda: POOL not in {p["id"] for p in az("pool", "list")}, "the pool is gone")


for part in (pool, job, tasks, node_operations, schedules, end):
    sys.stderr.write(f"{part.__name__}\n")
    part()
told(client="azure-cli")
finish("azure-cli")
