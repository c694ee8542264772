"""The emulator against peers: start with `task_rate`. `echo` is the peer of `add_collection`."""
