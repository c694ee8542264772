"""How to sign in. The only file that knows the local services from Azure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from runner.contract import StackOutputs
from runner.core.settings import Settings

if TYPE_CHECKING:
    from azure.batch import BatchClient
    from azure.batch.models import ResourceFile
    from azure.storage.blob import BlobServiceClient


class Connection:
    """Signed-in clients of one target, made on first use and kept; `outputs` describes the target."""

    outputs: StackOutputs

    def batch_client(self) -> BatchClient:
        """The data-plane client of the Batch account."""
        raise NotImplementedError

    def blob_service(self) -> BlobServiceClient:
        """The client of the storage account."""
        raise NotImplementedError

    def node_storage(self, lifetime: timedelta) -> dict[str, Any]:
        """The RUNNER_STORAGE document of docs/run-format.md, a secret; container SAS valid for `lifetime`."""
        raise NotImplementedError

    def resource_file(self, blob_name: str, file_path: str, lifetime: timedelta) -> ResourceFile:
        """A blob of the `runs` container as a file in the task's working directory."""
        raise NotImplementedError


def connect(settings: Settings) -> Connection:
    """Read the target's outputs and keys; nothing is sent yet."""
    raise NotImplementedError
