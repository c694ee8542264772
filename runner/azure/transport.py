"""Client options: patient with a busy service, quick to say that none is there.

The SDKs' own defaults make a refused connection take about 5 s (Batch) or a minute (Storage).
"""

from __future__ import annotations

import logging
from typing import Any

# Files and blocks of files travel side by side (flows/data_stores.py, blob_store.py).
_CONNECTIONS = 32
_READ_BYTES = 1024 * 1024
_COMMON: dict[str, Any] = {"connection_timeout": 10, "read_timeout": 60}
_BLOB_RETRIES: dict[str, Any] = {"retry_total": 6, "retry_connect": 1, "retry_status": 5}


def batch_options() -> dict[str, Any]:
    """Keyword arguments for `BatchClient`: a refused connection is reported after about 0.4 s."""
    return {**_COMMON, "retry_total": 5, "retry_connect": 2, "retry_backoff_factor": 0.2}


def blob_options() -> dict[str, Any]:
    """Keyword arguments for `BlobServiceClient`: a refused connection takes about 1 s.

    The backoff is `initial_backoff + increment_base ** n` seconds: 1 s between any two tries.
    """
    return {
        **_COMMON,
        "initial_backoff": 0,
        "increment_base": 1,
        "random_jitter_range": 0.2,
        **_BLOB_RETRIES,
    }


def retry_options() -> dict[str, Any]:
    """Keyword arguments for azure-core's `RetryPolicy`: as patient as `blob_options`."""
    return {**_BLOB_RETRIES, "retry_mode": "fixed", "retry_backoff_factor": 1}


def storage_transport(**options: Any) -> Any:
    """A transport that keeps a connection for everything that travels at once.

    The SDK's keeps ten: what the eleventh thread opened is closed after every request. And it reads
    bodies in pieces of 4 KiB, for each of which threads wait for one another.
    """
    from azure.core.pipeline.transport import RequestsTransport  # noqa: PLC0415  slow, like the SDK

    # It warns of every body that breaks off, without saying of which; that is asked for again.
    logging.getLogger("azure.core.pipeline.transport._requests_basic").setLevel(logging.ERROR)
    transport = RequestsTransport(**_COMMON, connection_data_block_size=_READ_BYTES, **options)
    transport.open()
    for scheme in ("http://", "https://"):
        transport.session.get_adapter(scheme).init_poolmanager(4, _CONNECTIONS)
    return transport
