"""Containers of tasks, run by podman or docker. Start in `task_containers`."""
