"""What an account is busy with, and what its storage holds."""

from __future__ import annotations

from azure.batch.models import BatchJob
from azure.core.exceptions import ResourceNotFoundError

from runner.azure.credentials import Connection
from runner.azure.faults import service_errors


def unfinished_tasks(connection: Connection, limit: int) -> list[tuple[str, str]]:
    """Job and task id of up to `limit` tasks that wait or run, in any job that is not completed."""
    client = connection.batch_client()
    found: list[tuple[str, str]] = []
    with service_errors("looking for runs that are still active"):
        jobs: list[BatchJob] = list(client.list_jobs(filter="state ne 'completed'", select=["id"]))
        for job in jobs:
            try:
                for task in client.list_tasks(
                    str(job.id), filter="state ne 'completed'", select=["id"]
                ):
                    found.append((str(job.id), str(task.id)))
                    if len(found) == limit:
                        return found
            except ResourceNotFoundError:
                continue  # deleted meanwhile
    return found


def stored_bytes(connection: Connection) -> dict[str, int]:
    """Bytes in each container of the stack; one that is not there holds none."""
    outputs = connection.outputs
    sizes: dict[str, int] = {}
    names = (outputs.container_runs, outputs.container_models, outputs.container_data)
    for name in names:
        container = connection.blob_service().get_container_client(name)
        with service_errors(f"measuring container {name}"):
            try:
                sizes[name] = sum(blob.size or 0 for blob in container.list_blobs())
            except ResourceNotFoundError:
                sizes[name] = 0
    return sizes
