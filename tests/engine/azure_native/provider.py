"""Pulumi's provider protocol for azure-native, with the types of the SDK and a fake Azure."""
# ruff: noqa: N802 - the names are the protocol's

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    plugin_pb2,
    provider_pb2,
    provider_pb2_grpc,
)

from tests.engine.azure_native.azure import Azure, AzureError
from tests.engine.azure_native.immutable import changed_keys, changed_paths, in_path, replacing
from tests.unit.infra import cloud
from tests.unit.infra.oracle import args_class, plain, validate

FOLDER = "STAND_IN_AZURE"  # the variable of a plugin that an engine starts
VERSION = "3.29.0"
_KINDS = provider_pb2.PropertyDiff


def _arm_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Report an AzureError as the error of the operation, as the plugin does."""

    @functools.wraps(method)
    def answered(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except AzureError as err:
            context.abort(grpc.StatusCode.UNKNOWN, str(err))

    return answered


class AzureNative(provider_pb2_grpc.ResourceProviderServicer):
    """The provider of one fake Azure, whose folder contains all state."""

    def __init__(self, azure: Azure) -> None:
        self._azure = azure
        self._config: dict[str, str] = {}
        self._engine: str | None = None

    def Handshake(self, request: Any, context: Any) -> Any:
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=False)

    def Attach(self, request: Any, context: Any) -> Any:
        self._engine = request.address
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetSchema(self, request: Any, context: Any) -> Any:
        schema = {"name": "azure-native", "version": VERSION, "resources": {}, "types": {}}
        return provider_pb2.GetSchemaResponse(schema=json.dumps(schema))

    def CheckConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: Any) -> Any:
        self._config = {key.rpartition(":")[2]: value for key, value in request.variables.items()}
        return provider_pb2.ConfigureResponse(acceptSecrets=False, supportsPreview=True)

    @_arm_errors
    def Invoke(self, request: Any, context: Any) -> Any:
        arguments = _dict(request.args)
        self._azure.must_be_there(request.tok, arguments)
        # `return` is a keyword of Python, so it is set by name.
        answer = cloud.answer(request.tok, arguments, *self._azure.principal())
        if found := self._azure.read_by(request.tok, arguments):
            answer["tags"] = found["inputs"].get("tags") or {}
        response: Any = {"return": _struct(answer)}
        return provider_pb2.InvokeResponse(**response)

    def Check(self, request: Any, context: Any) -> Any:
        token = _token(request.urn)
        inputs = _dict(request.news)
        self._warn(request.urn)
        found = args_class(token)
        # azure-native uses the configured location of the stack.
        if found is not None and hasattr(found, "location") and "location" not in inputs:
            inputs |= {key: self._config[key] for key in ("location",) if key in self._config}
        failures = [
            provider_pb2.CheckFailure(property=v.path, reason=f"{v.path}: {v.message} ({v.kind})")
            for v in validate(token, request.name, inputs)
        ]
        return provider_pb2.CheckResponse(inputs=_struct(inputs), failures=failures)

    def Diff(self, request: Any, context: Any) -> Any:
        kind = cloud.short_type(_token(request.urn))
        old, new = _dict(request.old_inputs), _dict(request.news)
        for key in request.ignoreChanges:
            new.pop(key, None)
            old.pop(key, None)
        keys = changed_keys(old, new)
        replaces = sorted(set(keys) & replacing(kind))
        detailed = {
            path: provider_pb2.PropertyDiff(
                kind=_kind(how, replace=re.split(r"[.\[]", path)[0] in replaces), inputDiff=True
            )
            for path, how in changed_paths(old, new)
        }
        some = provider_pb2.DiffResponse.DIFF_SOME if keys else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(
            changes=some,
            replaces=replaces,
            diffs=keys,
            detailedDiff=detailed,
            hasDetailedDiff=True,
            # Names are unique: unless the name changes, the old resource is deleted first.
            deleteBeforeReplace=bool(replaces) and not _renamed(kind, keys),
        )

    @_arm_errors
    def Create(self, request: Any, context: Any) -> Any:
        token, inputs = _token(request.urn), _dict(request.properties)
        if request.preview:
            # Values that Azure computes are unknown in advance: azure-native leaves them out, too.
            return provider_pb2.CreateResponse(id="", properties=_struct(cloud.as_answered(inputs)))
        self._check_cloud(str(inputs.get("location", "")))
        resource_id, outputs = self._azure.create(token, plain(inputs))
        return provider_pb2.CreateResponse(id=resource_id, properties=_struct(outputs))

    def _check_cloud(self, location: str) -> None:
        """Refuse a region of another cloud than the provider was started for.

        A provider that an engine attaches to has its own environment, so only its settings count.
        """
        used = self._config.get("environment") or os.environ.get("ARM_ENVIRONMENT") or "public"
        attached = FOLDER not in os.environ
        regional = location and location.lower() != "global"
        if regional and not attached and cloud.environment_of(location.lower()) != used:
            raise AzureError("LocationNotAvailableForResourceType", f"{location} is not in {used}")

    @_arm_errors
    def Read(self, request: Any, context: Any) -> Any:
        found = self._azure.get(request.id)
        if found is None:
            return provider_pb2.ReadResponse(id="")
        return provider_pb2.ReadResponse(
            id=found["id"],
            properties=_struct(found["outputs"]),
            inputs=_struct(found["inputs"]),
        )

    @_arm_errors
    def Update(self, request: Any, context: Any) -> Any:
        token, inputs = _token(request.urn), _dict(request.news)
        if request.preview:
            return provider_pb2.UpdateResponse(
                properties=_struct({**_dict(request.olds), **cloud.as_answered(inputs)})
            )
        outputs = self._azure.update(token, request.id, plain(inputs))
        return provider_pb2.UpdateResponse(properties=_struct(outputs))

    @_arm_errors
    def Delete(self, request: Any, context: Any) -> Any:
        self._warn(request.urn)
        self._azure.delete(request.id)
        return empty_pb2.Empty()

    def _warn(self, urn: str) -> None:
        """Log the planned warnings of a resource in the engine, to which this is attached."""
        for message in self._azure.warnings_of(urn.rpartition("::")[2]):
            assert self._engine, "an engine that starts the plugin gives no address"
            with grpc.insecure_channel(self._engine) as channel:
                engine_pb2_grpc.EngineStub(channel).Log(
                    engine_pb2.LogRequest(
                        severity=engine_pb2.WARNING, message=f"{message}\n", urn=urn
                    )
                )

    def Cancel(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()


def _token(urn: str) -> str:
    """Return the type of a URN, such as `azure-native:batch:Pool`, without the parents' types."""
    return urn.split("::")[2].rpartition("$")[2]


def _renamed(kind: str, keys: list[str]) -> bool:
    return bool(set(keys) & in_path(kind))


def _kind(how: str, *, replace: bool) -> Any:
    name = how.upper() + ("_REPLACE" if replace else "")
    return _KINDS.Kind.Value(name)


def _dict(struct: struct_pb2.Struct) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(struct)
    return found


def _struct(values: Mapping[str, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update({key: value for key, value in values.items() if value is not None})
    return struct
