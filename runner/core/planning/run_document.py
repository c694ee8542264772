"""Convert a run plan to the document `run.json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from runner.core.planning.plan import DataRef, RunPlan
from runner.core.recipe.recipe import Recipe, image_digest
from runner.protocol.paths import code_blob
from runner.protocol.run_spec import FORMAT

# What a repetition decides anew; everything else of run.json is kept as it is, known or not.
_DECIDED = ("run_id", "created", "agent", "command", "params", "batch", "origin", "group")


def run_document(plan: RunPlan, job_id: str) -> dict[str, Any]:
    """The document of a plan; `job_id` is the job that the task really goes to."""
    planned = _planned(plan, job_id)
    if plan.repeats is None:
        return planned
    return {**plan.repeats, **{name: planned[name] for name in _DECIDED if name in planned}}


def _planned(plan: RunPlan, job_id: str) -> dict[str, Any]:
    recipe = plan.recipe
    return {
        "format": FORMAT,
        "run_id": plan.run_id,
        "experiment": plan.experiment,
        "created": plan.created.isoformat(),
        "recipe": {
            "name": recipe.name,
            "description": recipe.description,
            "source": recipe.source,
        },
        "code": _code(plan),
        "agent": {
            "sha256": plan.inputs.agent_sha256,
            "blob": code_blob(plan.inputs.agent_sha256),
        },
        "command": list(plan.command),
        "params": dict(plan.params),
        "env": dict(recipe.env),
        "requirements": _requirements(plan),
        "python": recipe.python,
        "data": _data(plan.inputs.data),
        "inputs": dict(plan.inputs.named),
        "secrets": [ref.variable for ref in recipe.secrets],
        "secret_refs": {ref.variable: ref.to_json() for ref in recipe.secrets},
        **_what_comes_of_it(recipe),
        **_where_and_when(plan),
        "batch": _batch(plan, job_id),
        "image": _image(recipe.image),
        "price": None,
        "origin": plan.origin,
    }


def _what_comes_of_it(recipe: Recipe) -> dict[str, Any]:
    return {
        "outputs": list(recipe.outputs),
        "named_outputs": dict(recipe.named_outputs),
        "metrics": {
            "patterns": dict(recipe.metric_patterns),
            "primary": recipe.primary_metric,
            "goal": recipe.goal,
        },
        "model": recipe.model.to_json() if recipe.model else None,
        "checkpoints": asdict(recipe.checkpoints) if recipe.checkpoints else None,
    }


def _where_and_when(plan: RunPlan) -> dict[str, Any]:
    return {
        "timeout_s": plan.recipe.timeout_s,
        "retries": plan.recipe.retries,
        "resources": plan.recipe.resources.to_json(),
        "priority": plan.recipe.priority,
        "after": list(plan.after),
        "group": plan.group,
    }


def _image(name: str | None) -> dict[str, str | None] | None:
    return None if name is None else {"name": name, "digest": image_digest(name)}


def _code(plan: RunPlan) -> dict[str, Any]:
    code = plan.inputs.code
    return {
        "sha256": code.sha256,
        "blob": code_blob(code.sha256),
        "size_bytes": code.size_bytes,
        "git_revision": code.git_revision,
        "git_dirty": code.git_dirty,
    }


def _batch(plan: RunPlan, job_id: str) -> dict[str, Any]:
    return {
        "account": plan.account,
        "pool": plan.pool.id,
        "vm_size": plan.pool.vm_size,
        "spot": plan.pool.spot,
        "job_id": job_id,
        "task_id": plan.task_id,
    }


def _requirements(plan: RunPlan) -> dict[str, str] | None:
    if plan.recipe.requirements is None or plan.inputs.requirements_sha256 is None:
        return None
    return {"file": plan.recipe.requirements, "sha256": plan.inputs.requirements_sha256}


def _data(data: DataRef | None) -> dict[str, Any] | None:
    if data is None:
        return None
    return {
        "name": data.name,
        "source": data.source,
        "notice": data.notice,
        "prefix": data.prefix,
        "files": [
            {"name": name, "size_bytes": size, "sha256": sha256}
            for name, size, sha256 in data.files
        ],
    }
