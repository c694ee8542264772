"""Azure Storage over plain HTTP: retries, credentials and blobs. Start in `blobs`."""
