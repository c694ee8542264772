"""Blob containers of an environment, and its file share."""

from __future__ import annotations

from azure.core.exceptions import ResourceExistsError

from runner.azure.credentials import Connection
from runner.azure.faults import service_errors


def ensure_containers(connection: Connection) -> None:
    """Create the containers `runs`, `models` and `data` where they are missing."""
    outputs = connection.outputs
    service = connection.blob_service()
    with service_errors("making the blob containers"):
        wanted = (outputs.container_runs, outputs.container_models, outputs.container_data)
        present = {container.name for container in service.list_containers()}
        for name in wanted:
            if name in present:
                continue
            try:
                service.create_container(name)  # pyright: ignore[reportUnknownMemberType]
            except ResourceExistsError:  # made by another runner meanwhile
                continue


def ensure_share(connection: Connection) -> None:
    """Create the file share that the outputs name, where it is missing."""
    with service_errors("making the file share"):
        try:
            connection.share_client().create_share()  # pyright: ignore[reportUnknownMemberType]
        except ResourceExistsError:
            return
