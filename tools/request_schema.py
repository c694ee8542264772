"""Compile the schema of request bodies that the emulator validates with.

    python -m tools.request_schema OPENAPI_FOLDER SDK_FOLDER

OPENAPI_FOLDER contains the service's descriptions (`*-stable/BatchService.json`); SDK_FOLDER one
folder per release of azure-batch with the unpacked wheel (`pip download --no-deps azure-batch==V`,
then `unzip`). The stable description decides names, types, enumerations and required properties.
The models of the SDKs add the properties of other api-versions, and when a property was added or
removed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batch_emulator.domain.validation.body_schema import route_key

TARGET = (
    Path(__file__).parents[1] / "batch_emulator" / "domain" / "validation" / "request_schema.json"
)

# operation of the stable description -> method of azure-batch 15 with the same body
_METHODS = {
    "Pool_Add": "create_pool",
    "Pool_Patch": "update_pool",
    "Pool_UpdateProperties": "replace_pool_properties",
    "Pool_EnableAutoScale": "enable_pool_auto_scale",
    "Pool_EvaluateAutoScale": "evaluate_pool_auto_scale",
    "Pool_Resize": "resize_pool",
    "Pool_RemoveNodes": "remove_nodes",
    "Job_Add": "create_job",
    "Job_Patch": "update_job",
    "Job_Update": "replace_job",
    "Job_Disable": "disable_job",
    "Job_Terminate": "terminate_job",
    "JobSchedule_Add": "create_job_schedule",
    "JobSchedule_Patch": "update_job_schedule",
    "JobSchedule_Update": "replace_job_schedule",
    "Task_Add": "create_task",
    "Task_AddCollection": "create_task_collection",
    "Task_Update": "replace_task",
    "ComputeNode_AddUser": "create_node_user",
    "ComputeNode_UpdateUser": "replace_node_user",
    "ComputeNode_Reboot": "reboot_node",
    "ComputeNode_Reimage": "reimage_node",
    "ComputeNode_Deallocate": "deallocate_node",
    "ComputeNode_DisableScheduling": "disable_node_scheduling",
    "ComputeNode_UploadBatchServiceLogs": "upload_node_logs",
    "Certificate_Add": "create_certificate",
}
_SIMPLE = {  # by type and format of OpenAPI
    ("string", None): "string",
    ("string", "date-time"): "datetime",
    ("string", "duration"): "duration",
    ("integer", "int32"): "int32",
    ("integer", "int64"): "int64",
    ("number", "double"): "double",
    ("boolean", None): "boolean",
    ("object", None): "object",
}
_MODEL_TYPES = {
    # `_attribute_map` of azure-batch up to 14, and annotations of azure-batch 15
    "str": "string",
    "int": "int32",
    "long": "int64",
    "float": "double",
    "bool": "boolean",
    "iso-8601": "datetime",
    "duration": "duration",
    "object": "object",
    "{str}": "{string}",
    "Any": "object",
    "datetime.datetime": "datetime",
    "datetime.timedelta": "duration",
}


@dataclass(slots=True)
class Property:
    """A property of a type: its type (`[X]` is a list), and the api-versions that know it."""

    type: str
    required: bool
    limits: dict[str, int] = field(default_factory=dict[str, int])
    read_only: bool = False
    days: set[str] = field(default_factory=set[str])
    required_days: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Source:
    """The content of one description or SDK: types and enumerations by name, bodies by operation.

    `routes` are the operations as `route_key` writes them.
    """

    day: str
    types: dict[str, dict[str, Property]]
    enums: dict[str, list[str]]
    bodies: dict[str, str]
    routes: set[str]


def from_description(path: Path) -> Source:
    """Read the service's OpenAPI description."""
    document = json.loads(path.read_text(encoding="utf-8"))
    definitions: Mapping[str, Any] = document["definitions"]
    enums = {name: one["enum"] for name, one in definitions.items() if "enum" in one}
    for one in definitions.values():
        for value in one.get("properties", {}).values():
            for schema in (value, value.get("items", {})):
                if "enum" in schema:
                    enums[schema["x-ms-enum"]["name"]] = schema["enum"]
    types = {
        name: {
            key: Property(
                _type_of(value),
                key in one.get("required", ()),
                {
                    limit: value[limit]
                    for limit in ("minimum", "maximum", "maxItems")
                    if limit in value
                },
                value.get("readOnly", False),
            )
            for key, value in one.get("properties", {}).items()
        }
        for name, one in definitions.items()
        if "enum" not in one
    }
    bodies = dict(_bodies(document))
    paths: Mapping[str, Mapping[str, Any]] = document["paths"]
    routes = {route_key(method, path) for path, methods in paths.items() for method in methods}
    return Source(document["info"]["version"][:10], types, enums, bodies, routes)


def _type_of(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "x-ms-enum" in schema:
        return schema["x-ms-enum"]["name"]
    if schema.get("type") == "array":
        return f"[{_type_of(schema['items'])}]"
    if "additionalProperties" in schema:
        return f"{{{_type_of(schema['additionalProperties'])}}}"
    return _SIMPLE[schema["type"], schema.get("format")]


def _bodies(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter.get("in") == "body":
                    yield operation["operationId"], _type_of(parameter["schema"])


_API_VERSION = re.compile(r"""api_version\W+["'](20\d\d-\d\d-\d\d)(?:\.\d+\.\d+)?["']""")


def from_sdk(folder: Path) -> Source:
    """Read the models of an unpacked azure-batch."""
    package = folder / "azure" / "batch"
    found = [
        version
        for path in sorted(package.glob("**/*.py"))
        for version in _API_VERSION.findall(path.read_text(encoding="utf-8"))
        if "models" not in path.parts
    ]
    day = max(set(found), key=found.count)
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((package / "models").glob("*.py"))
    ]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    types = {node.name: dict(_properties(node)) for node in classes}
    types = {name: properties for name, properties in types.items() if properties}
    enums = {node.name: _values(node) for node in classes if node.name not in types}
    operations = package / "_operations" / "_operations.py"
    bodies = dict(_bodies_of_sdk(operations)) if operations.is_file() else {}
    return Source(day, types, {k: v for k, v in enums.items() if v}, bodies, _routes(package))


_CALL = re.compile(
    # up to 14, and from 15 on
    r"self\._client\.(get|put|post|patch|delete|head)\(url.*?metadata = \{'url': '([^']+)'\}"
    r'|_url = "([^"]+)".*?HttpRequest\(\s*method="(\w+)"',
    re.DOTALL,
)


def _routes(package: Path) -> set[str]:
    """Return the operations that the methods of an SDK call."""
    found = [
        call
        for path in package.glob("*operations/*operations.py")
        for call in _CALL.findall(path.read_text(encoding="utf-8"))
    ]
    return {route_key(verb or method, old or new) for verb, old, new, method in found}


def _values(node: ast.ClassDef) -> list[str]:
    """Return the values of an enumeration."""
    return [
        statement.value.value
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]


def _properties(node: ast.ClassDef) -> Iterator[tuple[str, Property]]:
    literals = {
        target.id: ast.literal_eval(statement.value)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in ("_attribute_map", "_validation")
    }
    for name, mapped in literals.get("_attribute_map", {}).items():
        rules = literals.get("_validation", {}).get(name, {})
        required = rules.get("required", False)
        yield (
            mapped["key"],
            Property(_model_type(mapped["type"]), required, read_only=rules.get("readonly", False)),
        )
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Call):
            yield _rest_field(statement)


def _rest_field(statement: ast.AnnAssign) -> tuple[str, Property]:
    assert isinstance(statement.value, ast.Call)
    assert isinstance(statement.target, ast.Name)
    options = {
        k.arg: ast.literal_eval(k.value) for k in statement.value.keywords if k.arg != "format"
    }
    text = ast.unparse(statement.annotation)
    optional = text.startswith("Optional[")
    text = text[len("Optional[") : -1] if optional else text
    return options.get("name", statement.target.id), Property(
        _annotation_type(text), not optional, read_only=options.get("visibility") == ["read"]
    )


_CLASS = re.compile(r"_(?:models|enums)\.([A-Za-z]\w*)")


def _annotation_type(text: str) -> str:
    if text.lower().startswith("list["):
        return f"[{_annotation_type(text[5:-1])}]"
    if text.lower().startswith("dict[str, "):
        return f"{{{_annotation_type(text[10:-1])}}}"
    if "_models." in text:
        return _CLASS.findall(text)[-1]
    return _MODEL_TYPES[text]


def _model_type(text: str) -> str:
    if text.startswith("["):
        return f"[{_model_type(text[1:-1])}]"
    return _MODEL_TYPES.get(text, text)


def _bodies_of_sdk(path: Path) -> Iterator[tuple[str, str]]:
    operations = {method: operation for operation, method in _METHODS.items()}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef):
            continue
        name = node.name.removeprefix("_").removesuffix("_internal")
        for argument in node.args.args:
            if name in operations and argument.annotation is not None:
                text = ast.unparse(argument.annotation)
                if "_models." in text:
                    yield operations[name], _CLASS.findall(text)[-1]


def inner(kind: str) -> str:
    """Return the type of the items of a list or map, else the type itself."""
    return kind.strip("[]{}")


@dataclass(slots=True)
class Schema:
    """The union of all sources; `names` maps the type names of newer SDKs to ours."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    types: dict[str, dict[str, Property]] = field(default_factory=dict[str, dict[str, Property]])
    enums: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    visits: dict[str, set[str]] = field(
        default_factory=dict[str, set[str]]
    )  # type -> api-versions that have it
    _merged: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])

    def merge(self, name: str, source: Source, theirs: str) -> None:
        """Add a type as `source` has it, under our name."""
        known = theirs in source.types or theirs in source.enums
        if known and self.aliases.get(theirs, theirs) == theirs:
            self.aliases[theirs] = name
        if theirs in source.enums:
            known = self.enums.setdefault(name, [])
            lower = {value.lower() for value in known}
            known += [value for value in source.enums[theirs] if value.lower() not in lower]
            return
        if theirs not in source.types or (key := (name, source.day, theirs)) in self._merged:
            return
        self._merged.add(key)
        self.visits.setdefault(name, set()).add(source.day)
        ours = self.types.setdefault(name, {})
        for key, found in source.types[theirs].items():
            if found.read_only:
                continue
            known = ours.setdefault(key, self._new(found))
            known.days.add(source.day)
            if found.required:
                known.required_days.add(source.day)
            self.merge(inner(known.type), source, inner(found.type))

    def _new(self, found: Property) -> Property:
        theirs = inner(found.type)
        kind = found.type.replace(theirs, self.names.get(theirs, theirs))
        return Property(kind, found.required, found.limits)


def compile_schema(description: Path, sdks: list[Path]) -> dict[str, Any]:
    """Return the document that is written to request_schema.json."""
    stable = from_description(description)
    releases = sorted(((path.name, from_sdk(path)) for path in sdks), key=lambda one: one[1].day)
    sources = [stable, *(source for _, source in reversed(releases))]
    bodies = dict(stable.bodies)
    for source in sources:
        bodies = {**source.bodies, **bodies}
    first = _merged(sources, bodies, {})
    known = {name: name for name in {**stable.types, **stable.enums}}
    schema = _merged(sources, bodies, first.aliases | known)
    days = sorted({source.day for source in sources})
    finals = {source.day for name, source in releases if "b" not in name} | {stable.day}
    routes = {
        key: _versions(key, sources, days, finals) for source in sources for key in source.routes
    }
    version = json.loads(description.read_text(encoding="utf-8"))["info"]["version"]
    sha256 = hashlib.sha256(description.read_bytes()).hexdigest()
    return {
        "description": {"api-version": version, "sha256": sha256},
        "sdks": {name: source.day for name, source in releases},
        "routes": {key: found for key, found in sorted(routes.items()) if any(found)},
        "operations": dict(sorted(bodies.items())),
        "enums": dict(sorted(schema.enums.items())),
        "types": {
            name: {key: _written(one, schema.visits[name], days) for key, one in ours.items()}
            for name, ours in sorted(schema.types.items())
        },
    }


def _versions(key: str, sources: list[Source], days: list[str], finals: set[str]) -> list[str]:
    """Return the first api-version that has an operation and the first that does not; "" if all do.

    Previews of SDKs do not count as removal: they omit operations that their api-version still has.
    """
    having = sorted({source.day for source in sources if key in source.routes})
    later = [day for day in days if day > having[-1] and day in finals]
    return [having[0] if having[0] > days[0] else "", later[0] if later else ""]


def _merged(sources: list[Source], bodies: Mapping[str, str], names: Mapping[str, str]) -> Schema:
    schema = Schema(names)
    for source in sources:
        for operation, name in bodies.items():
            # older SDKs have the names of the description
            schema.merge(name, source, source.bodies.get(operation, name))
    return schema


def _written(found: Property, visits: set[str], days: list[str]) -> dict[str, Any]:
    """Return a property; `since` is the first day that knows it, `until` the first that does not.

    Api-versions without the type that has the property are not counted.
    """
    written: dict[str, Any] = {"type": found.type}
    optional = found.days - found.required_days
    if found.required:
        written["required"] = True
    if optional and found.required_days and max(found.required_days) < min(optional):
        written |= {"required": True, "required_until": min(optional)}
    written |= found.limits
    first, last = min(found.days), max(found.days)
    if any(day < first for day in visits):
        written["since"] = first
    later = [day for day in days if day > last and day in visits]
    if later:
        written["until"] = later[0]
    return written


def page(document: Mapping[str, Any]) -> str:
    """Return the document as text with one line a property, so that changes can be read."""
    parts = [
        f'"{name}": {json.dumps(value)}'
        if name in ("description", "sdks")
        else f'"{name}": {{\n{_lines(value)}\n}}'
        for name, value in document.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(section: Mapping[str, Mapping[str, Any] | list[str] | str]) -> str:
    return ",\n".join(
        f'  "{name}": {{\n'
        + ",\n".join(f'    "{key}": {json.dumps(value[key])}' for key in value)
        + "\n  }"
        if isinstance(value, Mapping)
        else f'  "{name}": {json.dumps(value)}'
        for name, value in section.items()
    )


def main(openapi: str, sdks: str) -> None:
    """Write the schema."""
    [description] = Path(openapi).glob("*-stable/BatchService.json")
    document = compile_schema(description, [p for p in Path(sdks).iterdir() if p.is_dir()])
    TARGET.write_text(page(document), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
