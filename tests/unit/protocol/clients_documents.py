"""Render every document that the client writes to blob storage, with fixed IDs and times."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer
from runner.azure.storage.model_container import ModelContainer
from runner.core.planning.plan import (
    CheckedRun,
    JobPlan,
    RunContent,
    RunPlan,
    compose_command,
    plan_run,
)
from runner.core.planning.repeat import Repetition, choose_same_pool, plan_again
from runner.core.recipe.options import RunOptions
from runner.core.recurrence import ScheduleSpec, plan_recurrence
from runner.core.states import TaskView
from runner.features.schedules.create import ScheduleRequest, create_schedule
from runner.flows.models.remove import remove
from runner.flows.runs.cancel import cancel_run
from runner.flows.runs.documents import index_run
from runner.flows.submit.check_and_read import FilesToUpload, input_entries
from runner.flows.submit.pipeline import SubmissionPlan
from runner.flows.submit.submit_group import submitting
from runner.protocol.groups import RunGroup, group_blob
from runner.protocol.models import ModelRegistry
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import CodeRef, DataRef, ResumeFrom, parse_run
from tests.unit.core.recipe_maker import load_text, outputs, pool, settings
from tests.unit.node.fake_blob import FakeBlobs

CREATED = datetime(2026, 11, 21, 14, 30, 5, 123456, tzinfo=UTC)
KEYS = {"batch": "unused", "storage": base64.b64encode(b"k" * 64).decode()}
CODE = CodeRef("c" * 64, 4096, 2, git_revision="0123456789abcdef0123456789abcdef01234567")
AGENT = "a" * 64

PLAIN = """
name: cats
description: Tells cats from dogs
command: python train.py
params: {epochs: 5, rate: {type: float, default: 1e-3}, fast: true}
"""
FULL = """
name: cats
description: Tells cats from dogs, äöü
command: [python, -m, "train it"]
requirements: requirements.txt
python: "3.12"
inputs:
  words: ./words
  one: ./words/a.txt
  table: blob:extra/tables/2026
  page: {url: "https://example.com/x.csv", sha256: "SHA256"}
  disk: share:corpora/small
  before: {run: mnist-20261120-080910-x7m2, path: "model*"}
secrets:
  HF_TOKEN: {env: HF_TOKEN}
  WANDB_API_KEY: {keyvault: "https://team.vault.azure.net/secrets/wandb"}
params: {epochs: 5, optimizer: adam}
outputs: [model.keras, "*.json"]
named_outputs: {plots: figures, word-list: lists/words}
metrics:
  primary: val_loss
  goal: min
  patterns: {loss: 'loss=([0-9.]+)'}
env: {TF_CPP_MIN_LOG_LEVEL: "2"}
timeout: 2h
model: {name: cats, aliases: [staging], path: "model*", description: Cats}
retries: 2
checkpoints: {interval: 90s, keep: 5, max_size: 2GiB}
resources: {gpus: 1, memory: 28GiB, vm_sizes: [Standard_NC4as_T4_v3], capacity: spot}
priority: 7
""".replace("SHA256", "5" * 64)
DATA = DataRef.of_files(
    "mnist", "cache", "a notice", (("b.gz", 2, "b" * 64), ("a.gz", 1, "a" * 64))
)
RUN_ID = "cats-20261121-143005-k3f9"
GROUP_ID = "nightly-20261121-143005-g7h8"


def _account(service: FakeBlobs) -> str:
    return service.url.rpartition("/")[0]


class Client:
    """A client of a fake service; `folder` is for recipes."""

    def __init__(self, folder: Path, service: FakeBlobs) -> None:
        self._folder = folder
        self.outputs = replace(
            outputs(
                pool(vm_size="STANDARD_NC4AS_T4_V3", gpus=1, vcpus=4, max_nodes=4),
                pool("containers", containers=True),
            ),
            blob_endpoint=_account(service),
            file_share="share",
        )
        self.connection = Connection(self.outputs, KEYS)
        self.runs = BlobContainer(self.connection.blob_service(), "runs")

    def plan(self, text: str, run_id: str = RUN_ID, **changes: Any) -> RunPlan:
        """Return the plan of a run of this train.yaml."""
        folder = self._folder / run_id
        (folder / "words").mkdir(parents=True, exist_ok=True)
        (folder / "words" / "a.txt").write_text("a\n", encoding="utf-8")
        (folder / "words" / "b.txt").write_text("bb\n", encoding="utf-8")
        (folder / "requirements.txt").write_text("keras\n", encoding="utf-8")
        recipe = load_text(folder, text)
        documents = input_entries(
            recipe.inputs, self.outputs, self._folder, lambda _: None, FilesToUpload()
        )
        if "table" in documents:  # inputs that the services resolve
            documents["table"] = {
                "kind": "blob",
                "blob": "extra/tables/2026",
                "container": "extra",
                "prefix": "tables/2026/",
                "manifest": "f" * 64,
                "single": None,
                "files": [
                    {"name": "x.csv", "size_bytes": 9, "etag": '"0x1"', "md5": "bWQ1"},
                    {"name": "y/z.csv", "size_bytes": 0, "etag": '"0x2"', "md5": None},
                ],
            }
            documents["before"] = {
                "kind": "run",
                "run_id": "mnist-20261120-080910-x7m2",
                "path": "model*",
            }
        params = {param.name: param.default for param in recipe.params if param.default is not None}
        script_args = tuple(changes.pop("script_args", ()))
        command, template = compose_command(recipe, params, script_args)
        made = plan_run(
            CheckedRun(recipe, RunOptions(args=script_args), params, command, template),
            RunContent(
                code=CODE,
                agent_sha256=AGENT,
                requirements_sha256="d" * 64 if recipe.requirements_file else None,
                data=changes.pop("data", None),
                inputs=documents,
            ),
            settings(),
            self.outputs,
            self.outputs.pools[1 if recipe.image else 0],
            run_id=run_id,
            created=CREATED,
        )
        return replace(made, **changes)

    def submit(self, plan: RunPlan, job_id: str | None = None) -> dict[str, Any]:
        """Write run.json and the run's entry in the index."""
        document = replace(plan, job_id=job_id or plan.job_id).to_spec().to_json()
        self.runs.create(RunPaths(plan.run_id).run, document)
        index_run(self.runs, document)
        return document

    def repeat(self, raw: Mapping[str, Any], run_id: str, asked: Repetition) -> None:
        """Write run.json of a run that repeats another one."""
        spec = parse_run(json.dumps(raw).encode(), raw["run_id"])
        plan = plan_again(
            spec,
            asked,
            self.outputs,
            choose_same_pool(None, spec, self.outputs, asked.nodes),
            run_id=run_id,
            created=CREATED + timedelta(days=1),
            agent_sha256="e" * 64,
            origin={"kind": asked.kind, "run_id": spec.run_id},
        )
        self.submit(plan, "cats_local-2")

    def template(
        self, plans: Mapping[str, RunPlan], job: JobPlan, group: RunGroup | None = None
    ) -> SubmissionPlan:
        """Return the plan of a schedule's runs, with an empty code archive."""
        files = FilesToUpload()
        files.archives |= {CODE.sha256: b"code", AGENT: b"agent"}
        runs = {name: replace(plan, job_id="") for name, plan in plans.items()}
        return SubmissionPlan(runs, job, group, files)


def _runs(client: Client) -> dict[str, str]:
    """Write single runs. Return their blobs by the name of the golden file."""
    client.submit(client.plan(PLAIN, "cats-20261121-143005-aaaa", script_args=("--", "-v")))
    raw = client.submit(
        client.plan(FULL, data=DATA, after=("mnist-20261120-080910-x7m2",)), "cats_local-2"
    )
    client.submit(client.plan(PLAIN + "checkpoints: false\n", "cats-20261121-143005-bbbb"))
    image = f"image: ghcr.io/me/torch@sha256:{'9' * 64}\n"
    client.submit(client.plan(PLAIN + image, "cats-20261121-143005-cccc"))
    nodes = "resources: {nodes: 4}\n"
    client.submit(client.plan(PLAIN + nodes, "cats-20261121-143005-dddd"))
    client.repeat(
        raw | {"a field of a later version": {"kept": True}},
        "cats-20261122-143005-eeee",
        Repetition(
            "retry",
            after={"mnist-20261120-080910-x7m2": "mnist-20261121-080910-p9q8"},
        ),
    )
    client.repeat(
        raw,
        "cats-20261122-143005-ffff",
        Repetition(
            "resume",
            overrides=("epochs=9",),
            resume_from=ResumeFrom(RUN_ID, 7),
            nodes=2,
        ),
    )
    client.repeat(
        raw,
        "cats-20261122-143005-gggg",
        Repetition("reproduce", constraints=("keras==3.12.0", "numpy==2.3.4")),
    )
    names = {
        "run-plain": "cats-20261121-143005-aaaa",
        "run-full": RUN_ID,
        "run-no-checkpoints": "cats-20261121-143005-bbbb",
        "run-image": "cats-20261121-143005-cccc",
        "run-nodes": "cats-20261121-143005-dddd",
        "run-retry": "cats-20261122-143005-eeee",
        "run-resume": "cats-20261122-143005-ffff",
        "run-reproduce": "cats-20261122-143005-gggg",
    }
    return {f"{name}.json": f"{run_id}/run.json" for name, run_id in names.items()}


def _group(client: Client) -> RunGroup:
    return RunGroup(
        group_id=GROUP_ID,
        name="nightly",
        created=CREATED,
        job_id=GROUP_ID,
        pool="local",
        runs={
            "prepare": "nightly-prepare-20261121-143005-aaaa",
            "merge": "nightly-merge-20261121-143005-bbbb",
        },
        after={"prepare": (), "merge": ("prepare",)},
    )


def _members(client: Client, group: RunGroup) -> dict[str, RunPlan]:
    """Return the plans of a group's runs."""
    first, second = group.runs.values()
    before = {"kind": "run", "run_id": first, "path": None}
    plans = {
        "prepare": client.plan(PLAIN, first),
        "merge": client.plan(PLAIN, second, after=(first,), depends_on=(first,)),
    }
    merge = plans["merge"]
    plans["merge"] = replace(merge, content=replace(merge.content, inputs={"parts": before}))
    return {
        name: replace(plan, job_id=group.job_id, group=group.group_id)
        for name, plan in plans.items()
    }


def _submit_group(client: Client) -> dict[str, str]:
    group = _group(client)
    client.runs.create(group_blob(group.group_id), group.to_json())
    for plan in _members(client, group).values():
        client.submit(plan)
    return {
        "group.json": f"groups/{GROUP_ID}.json",
        "run-in-group.json": f"{group.runs['merge']}/run.json",
    }


def _schedules(client: Client) -> dict[str, str]:
    """Create a schedule of one task and one of several. Return their blobs by golden file."""
    cron = ScheduleSpec(cron="0 3 * * *", timezone="UTC+01:00", max_runs=10)
    every = ScheduleSpec(every=timedelta(hours=6))
    group = _group(client)
    with (
        patch("secrets.choice", lambda options: options[0]),
        patch("runner.azure.batch.schedules.get_schedule", lambda *_: None),
        patch("runner.azure.batch.schedules.create_schedule", lambda *_: None),
    ):
        create_schedule(
            client.connection,
            client.template({"cats": client.plan(PLAIN)}, JobPlan("", False, "local")),
            ScheduleRequest("each-night", cron, plan_recurrence(cron, CREATED)),
            lambda _: None,
        )
        create_schedule(
            client.connection,
            client.template(_members(client, group), JobPlan("", False, "local", 3, 2), group),
            ScheduleRequest("nightly", every, plan_recurrence(every, CREATED)),
            lambda _: None,
        )
    instance = "aaaaaaaa"
    return {
        "schedule.json": "schedules/each-night/schedule.json",
        "schedule-run-template.json": f"schedules/each-night/{instance}/run.json",
        "schedule-of-group.json": "schedules/nightly/schedule.json",
        "schedule-group-template.json": f"schedules/nightly/{instance}/group.json",
    }


def _cancel(client: Client) -> dict[str, str]:
    """Cancel a waiting run. Return the blob of its outcome by golden file."""
    spec = parse_run(client.runs.read(f"{RUN_ID}/run.json") or b"", RUN_ID)
    with (
        patch("runner.flows.runs.cancel.get_task", lambda *_: TaskView("active")),
        patch("runner.flows.runs.cancel.terminate_task", lambda *_: None),
    ):
        cancel_run(client.connection, spec)
    return {"result-cancelled.json": f"{RUN_ID}/result.json"}


def remove_model(service: FakeBlobs, metadata: Callable[[str], bytes]) -> dict[str, bytes]:
    """Remove a version of a model that the agent registered. Return the remaining documents."""
    stack = replace(outputs(), blob_endpoint=_account(service), container_models="runs")
    store = ModelContainer(Connection(stack, KEYS))
    remove(store, ModelRegistry(store, "cats"), "cats", [1])
    return {
        "model-version-removed.json": service.data("cats/versions/1.json"),
        "model-summary-removed.txt": metadata("cats/versions/1.json"),
    }


def render(folder: Path, service: FakeBlobs, metadata: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return all documents by file name; `metadata` returns that of the last write of a blob."""
    client = Client(folder, service)
    names = _runs(client) | _submit_group(client)
    index = {"index-submitted.txt": metadata(f"index/{RUN_ID}")}
    with submitting(client.connection, GROUP_ID):
        note = service.data(f"submitting/{GROUP_ID}.json")
    names |= _schedules(client) | _cancel(client)
    index["index-cancelled.txt"] = metadata(f"index/{RUN_ID}")
    return {
        **{file: service.data(blob) for file, blob in names.items()},
        **index,
        "submitting.json": note,
    }
