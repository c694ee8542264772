"""The registered models, and one with its versions, aliases, files and where each came from."""

from __future__ import annotations

from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.models.versions import (
    ModelVersion,
    existing_model,
    find_version,
    list_models,
    split_reference,
)
from runner.page.ask import Ask, WebPage
from runner.page.rest import Endpoint
from runner.views.models import (
    RegisteredModel,
    VersionLine,
    registered_model,
    version_document,
    version_line,
)

_COMPUTED = ("latest", "best")  # aliases that nobody sets


async def read_models(ask: Ask) -> list[RegisteredModel]:
    """Return the models that have versions."""

    def load(connection: Connection) -> list[RegisteredModel]:
        return [registered_model(model) for model in list_models(connection) if model.live]

    return await ask.source.read(("models",), load, fresh_s=2.0)


async def read_versions(ask: Ask) -> list[VersionLine]:
    """Return the versions of a model, newest first, without deleted ones."""
    name = ask.parts["model"]

    def load(connection: Connection) -> list[VersionLine]:
        model = existing_model(connection, split_reference(name)[0])
        return [version_line(each) for each in reversed(model.versions) if not each.deleted]

    return await ask.source.read(("model", name), load, fresh_s=2.0)


async def read_version(ask: Ask) -> dict[str, Any]:
    """Return a version: its origin, metrics and files."""
    reference = f"{ask.parts['model']}@{ask.parts['version']}"
    return await ask.source.read(
        ("version", reference),
        lambda connection: version_document(find_version(connection, reference, deleted=True)),
    )


async def read_list(ask: Ask) -> dict[str, Any]:
    """Return the values of `models.html`."""
    return {"title": "Models", "models": await read_models(ask)}


async def read_model(ask: Ask) -> dict[str, Any]:
    """Return the values of `model.html`: all versions, and the one that the address names."""
    name = ask.parts["model"]
    versions = await read_versions(ask)
    wanted = ask.text("version") or "latest"

    def load(connection: Connection) -> ModelVersion:
        return find_version(connection, f"{name}@{wanted}", deleted=True)

    shown: ModelVersion | None = None
    if versions:
        shown = await ask.source.read(("model version", name, wanted), load, fresh_s=2.0)
    document = dict(shown.document or {}) if shown else {}
    return {
        "title": f"Model {name}",
        "name": name,
        "versions": versions,
        "shown": shown,
        "document": document,
        "lineage": document.get("lineage") or {},
        "computed": _COMPUTED,
    }


ENDPOINTS = (
    Endpoint(
        "/models",
        "List the models.",
        list[RegisteredModel],
        read_models,
        command="runner models ls",
    ),
    Endpoint(
        "/models/{model}",
        "List the versions of a model, newest first.",
        list[VersionLine],
        read_versions,
        command="runner models ls MODEL",
    ),
    Endpoint(
        "/models/{model}/{version}",
        "Return a version, which is a number, latest, best or an alias.",
        dict[str, Any],
        read_version,
        command="runner models show MODEL@VERSION",
    ),
)
PAGE = WebPage("/models", "models", read_list, every_s=5.0, label="Models")
MODEL_PAGE = WebPage("/models/{model}", "model", read_model, every_s=5.0)
