"""The resources of a fake Azure, stored in a folder by ARM ID, with the refusals of Azure."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tests.engine.azure_native.immutable import changed_keys, refused, refused_empty
from tests.unit.infra import cloud

_RESOURCE = re.compile(
    r"^/subscriptions/[^/]+/resourceGroups/[^/]+(/providers/.+)?$", re.IGNORECASE
)
# A resource cannot be deleted while another resource has its ID in one of these inputs.
_HOLDS = {
    "subnetId": "InUseSubnetCannotBeDeleted",
    "natGateway": "InUseNatGatewayCannotBeDeleted",
    "publicIpAddresses": "PublicIPAddressCannotBeDeleted",
    "networkSecurityGroup": "InUseNetworkSecurityGroupCannotBeDeleted",
    "subnet": "InUseSubnetCannotBeDeleted",
    "virtualNetwork": "InUseVirtualNetworkCannotBeDeleted",
    "privateDnsZoneId": "InUsePrivateDnsZoneCannotBeDeleted",
}


class AzureError(Exception):
    """An error of Azure Resource Manager."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f'Code="{code}" Message="{message}"')
        self.code = code


class Azure:
    """The resources of one test, in a folder that the test may read and change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._resources = folder / "resources"
        self._resources.mkdir(parents=True, exist_ok=True)

    # -- for tests
    def fail(self, operation: str, name: str, code: str, *, times: int = 1) -> None:
        """Let the next `times` creations, updates or deletions of the named resource fail."""
        plan = self._plan()
        plan["failures"].append({"operation": operation, "name": name, "code": code, "left": times})
        self._write(self._folder / "plan.json", plan)

    def refuse_resent(self, kind: str, name: str) -> None:
        """Refuse every update of a type that contains this input, even if it does not change."""
        plan = self._plan()
        plan["fixed"].setdefault(kind, []).append(name)
        self._write(self._folder / "plan.json", plan)

    def change_by_hand(self, ending: str, path: str, value: Any) -> None:
        """Change a property of the resource whose ID has this ending, as a user in the portal.

        `path` is that of the input, such as `scaleSettings.autoScale.formula`. The change is not in
        the journal.
        """
        record = self._by_ending(ending)
        for part in ("inputs", "outputs"):
            *outer, last = path.split(".")
            inner: dict[str, Any] = record[part]
            for name in outer:
                inner = inner.setdefault(name, {})
            inner[last] = value
        self._write(self._file(record["id"]), record)

    def delete_by_hand(self, ending: str) -> None:
        """Delete the resource whose ID has this ending, with all below it, as a user."""
        where = self._by_ending(ending)["id"]
        for path in self._resources.iterdir():
            if self._is_below(path, f"{where}/".lower()):
                path.unlink()
        self._file(where).unlink()

    def _by_ending(self, ending: str) -> dict[str, Any]:
        found = [self._read(path) for path in self._resources.iterdir()]
        [record] = [each for each in found if each["id"].endswith(ending)]
        return record

    def warn(self, name: str, message: str) -> None:
        """Let the provider log a warning with each check and deletion of a resource.

        `name` is that of the resource in Pulumi.
        """
        plan = self._plan()
        plan["warnings"].append([name, message])
        self._write(self._folder / "plan.json", plan)

    def warnings_of(self, name: str) -> list[str]:
        """Return the warnings of a resource."""
        return [message for of, message in self._plan()["warnings"] if of == name]

    def sign_in(self, object_id: str, idtyp: str = "user") -> None:
        """Let another principal deploy from now on: a `user`, or an `app`, such as a CI system."""
        self._write(self._folder / "plan.json", {**self._plan(), "principal": [object_id, idtyp]})

    def slow_down(self, seconds: float) -> None:
        """Set the duration of all operations, including those that have begun."""
        self._write(self._folder / "plan.json", {**self._plan(), "latency_s": seconds})

    def under_way(self) -> int:
        """Return the number of operations that have begun and not ended."""
        return len(list(self._folder.glob("*.begun")))

    def ids(self) -> set[str]:
        """Return the ARM IDs of all resources."""
        return {self._read(path)["id"] for path in self._resources.iterdir()}

    def journal(self) -> list[tuple[str, str]]:
        """Return all completed operations in order: create, update or delete, and the ID."""
        path = self._folder / "journal.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    # -- for the provider
    def principal(self) -> tuple[str, str]:
        """Return the object ID of the principal that is signed in, and its kind in tokens."""
        object_id, idtyp = self._plan()["principal"]
        return object_id, idtyp

    def read_by(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the resource that a function reads; None if the function reads no resource."""
        kind = cloud.READ.get(token.rpartition(":")[2])
        return self.get(cloud.arm_id(f"azure-native:{kind}", arguments)) if kind else None

    def must_be_there(self, token: str, arguments: Mapping[str, Any]) -> None:
        """Raise AzureError for a read of an account or a group that does not exist."""
        kind = cloud.READ.get(token.rpartition(":")[2])
        resource_id = kind and cloud.arm_id(f"azure-native:{kind}", arguments)
        if resource_id and not self._file(resource_id).exists():
            raise AzureError("ResourceNotFound", f"{resource_id} was not found")

    def create(self, token: str, inputs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Create a resource. Raise AzureError if it exists, as azure-native does."""
        resource_id = cloud.arm_id(token, inputs)
        with self._operation("create", resource_id):
            if self._file(resource_id).exists():
                raise AzureError(
                    "Conflict", f"cannot create already existing resource '{resource_id}'"
                )
            self._must_exist(resource_id, inputs)
            return resource_id, self._put(token, resource_id, inputs)

    def update(self, token: str, resource_id: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Update a resource. Raise AzureError for a property that Azure cannot change."""
        with self._operation("update", resource_id):
            old = self.get(resource_id)
            if old is None:
                raise AzureError("ResourceNotFound", f"{resource_id} was not found")
            kind = cloud.short_type(token)
            no = refused(kind, changed_keys(old["inputs"], inputs)) + refused_empty(kind, inputs)
            if no := no + [name for name in self._plan()["fixed"].get(kind, []) if name in inputs]:
                message = f"A property that cannot be updated was specified: {', '.join(no)}"
                raise AzureError("PropertyCannotBeUpdated", message)
            self._must_exist(resource_id, inputs)
            return self._put(token, resource_id, inputs)

    def delete(self, resource_id: str) -> None:
        """Delete a resource, if it exists, with all resources below it."""
        with self._operation("delete", resource_id):
            below = f"{resource_id}/".lower()
            mine = [path for path in self._resources.iterdir() if self._is_below(path, below)]
            for path in self._resources.iterdir():
                if path not in mine and path != self._file(resource_id):
                    self._refuse_if_held(self._read(path), resource_id)
            for path in [*mine, self._file(resource_id)]:
                path.unlink(missing_ok=True)

    def get(self, resource_id: str) -> dict[str, Any] | None:
        """Return ID, type, inputs and outputs of a resource, or None."""
        path = self._file(resource_id)
        return self._read(path) if path.exists() else None

    def _put(self, token: str, resource_id: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        outputs = cloud.outputs(token, inputs)
        record = {"id": resource_id, "type": token, "inputs": dict(inputs), "outputs": outputs}
        self._write(self._file(resource_id), record)
        return outputs

    def _must_exist(self, resource_id: str, inputs: Mapping[str, Any]) -> None:
        """Raise AzureError if the parent or a resource in the inputs does not exist."""
        for needed in [*_parents(resource_id), *_references(inputs)]:
            if not self._file(needed).exists():
                code = "ParentResourceNotFound" if resource_id.startswith(needed) else "NotFound"
                raise AzureError(code, f"{resource_id} needs {needed}, which was not found")

    def _refuse_if_held(self, record: Mapping[str, Any], resource_id: str) -> None:
        for key, value in _walk(record["inputs"]):
            if key in _HOLDS and value.lower() == resource_id.lower():
                raise AzureError(_HOLDS[key], f"{resource_id} is in use by {record['id']}")

    def _is_below(self, path: Path, prefix: str) -> bool:
        return self._read(path)["id"].lower().startswith(prefix)

    @contextmanager
    def _operation(self, operation: str, resource_id: str) -> Generator[None]:
        """Run one operation at a time, after the latency and planned failures. Then log it."""
        with self._begun(), (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._fail_if_planned(operation, resource_id)
            yield
            with (self._folder / "journal.jsonl").open("a", encoding="utf-8") as journal:
                journal.write(json.dumps([operation, resource_id]) + "\n")

    @contextmanager
    def _begun(self) -> Generator[None]:
        """Count the operation in `under_way`, and wait for the latency."""
        began = time.monotonic()
        mark = self._folder / f"{uuid.uuid4()}.begun"
        mark.touch()
        try:
            while time.monotonic() - began < self._plan()["latency_s"]:
                time.sleep(0.05)
            yield
        finally:
            mark.unlink()

    def _fail_if_planned(self, operation: str, resource_id: str) -> None:
        plan = self._plan()
        for failure in plan["failures"]:
            ours = failure["operation"] == operation and resource_id.endswith(f"/{failure['name']}")
            if ours and failure["left"] > 0:
                failure["left"] -= 1
                self._write(self._folder / "plan.json", plan)
                raise AzureError(failure["code"], f"{operation} of {resource_id} failed")

    def _plan(self) -> dict[str, Any]:
        path = self._folder / "plan.json"
        none = {
            "latency_s": 0.0,
            "failures": [],
            "fixed": {},
            "warnings": [],
            "principal": [cloud.DEPLOYER, "user"],
        }
        return {**none, **self._read(path)} if path.exists() else none

    def _file(self, resource_id: str) -> Path:
        """Return the file of a resource: a hash, because IDs are long and ignore case."""
        return self._resources / hashlib.sha256(resource_id.lower().encode()).hexdigest()

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        return json.loads(path.read_text("utf-8"))

    @staticmethod
    def _write(path: Path, value: Any) -> None:
        part = path.with_name(f".{path.name[-80:]}.part")
        part = part.parent.parent / part.name if path.parent.name == "resources" else part
        part.write_text(json.dumps(value), "utf-8")
        part.replace(path)


def _parents(resource_id: str) -> Iterator[str]:
    """Yield the IDs of the group, of all parents, and of an extension's scope (role, budget)."""
    group, *rest = resource_id.split("/providers/")
    if rest and "/resourceGroups/" in group:
        yield group
    path = group
    for number, part in enumerate(rest):
        provider, *names = part.split("/")
        pairs = [names[at : at + 2] for at in range(0, len(names), 2)]
        last = number == len(rest) - 1
        path = f"{path}/providers/{provider}"
        for at, pair in enumerate(pairs):
            path = "/".join([path, *pair])
            # an account creates blobServices/default and similar resources
            if not (last and at == len(pairs) - 1) and pair[1] != "default":
                yield path


def _references(inputs: Mapping[str, Any]) -> Iterator[str]:
    for _, text in _walk({name: value for name, value in inputs.items() if name != "tags"}):
        if _RESOURCE.match(text) and "/versions/" not in text:
            yield text


def _walk(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string in a value, with the name of its input."""
    if isinstance(value, Mapping):
        for name, item in cast("Mapping[str, Any]", value).items():
            yield from _walk(item, key if name in ("id", "value") and key else name)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _walk(item, key)
    elif isinstance(value, str):
        yield key, value
