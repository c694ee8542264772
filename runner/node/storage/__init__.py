"""Azure Storage over plain HTTP: credentials, retries and blobs. Start in `blobs`."""
