"""File systems that nodes mount: file shares, blob containers, exports. Start in `node_mounts`."""
