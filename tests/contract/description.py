"""The OpenAPI description of the service, if it exists beside the checkout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.http.routes.table import Matcher

FOLDER = Path(__file__).parents[2].parent / "shared" / "reference" / "openapi"
STABLE, PREVIEW = "stable", "preview"

needed = pytest.mark.skipif(not FOLDER.is_dir(), reason="the service's description is not here")


@dataclass(frozen=True)
class Operation:
    """An operation of a description; `path` has `{parameters}`."""

    name: str
    method: str
    path: str
    parameters: tuple[Mapping[str, Any], ...]
    responses: Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """An example of the service: `parameters` by name, and `responses` by status."""

    flavour: str
    name: str
    operation: Operation
    parameters: Mapping[str, Any]
    responses: Mapping[str, Any]

    @property
    def stable_name(self) -> str:
        """The name in the stable description of the operation with the same requests."""
        here = (self.operation.method, self.operation.path)
        return next(o.name for o in description(STABLE).operations if (o.method, o.path) == here)

    def __str__(self) -> str:
        return f"{self.flavour}-{self.name}"


@dataclass(frozen=True)
class Description:
    """A description; `matcher` finds its operations by method and path."""

    document: Mapping[str, Any]
    operations: tuple[Operation, ...]
    matcher: Matcher[Operation]

    def definition(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the referenced schema, or the schema itself."""
        while "$ref" in schema:
            schema = self.document["definitions"][str(schema["$ref"]).rpartition("/")[2]]
        return schema


@cache
def description(flavour: str) -> Description:
    """Return the description of a flavour, STABLE or PREVIEW."""
    [path] = FOLDER.glob(f"*-{flavour}/BatchService.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    operations = tuple(_operations(document))
    return Description(document, operations, Matcher(operations))


def _operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, body in methods.items():
            parameters = tuple(
                document["parameters"][p["$ref"].rpartition("/")[2]] if "$ref" in p else p
                for p in body.get("parameters", ())
            )
            yield Operation(
                body["operationId"], method.upper(), path, parameters, body["responses"]
            )


def examples(flavour: str) -> Iterator[Example]:
    """Yield every example of a flavour, in the order of operations."""
    if not FOLDER.is_dir():
        return
    found = description(flavour)
    [folder] = FOLDER.glob(f"*-{flavour}/examples")
    operations = {(o.method, o.path): o for o in found.operations}
    for path, methods in found.document["paths"].items():
        for method, body in methods.items():
            for reference in body.get("x-ms-examples", {}).values():
                name = str(reference["$ref"]).rpartition("/")[2]
                example = json.loads((folder / name).read_text(encoding="utf-8"))
                yield Example(
                    flavour,
                    name.removesuffix(".json"),
                    operations[method.upper(), path],
                    example["parameters"],
                    example["responses"],
                )
