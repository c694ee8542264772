"""Blob containers and the file share. Start in `blobs`."""
