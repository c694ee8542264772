"""Processes of tasks: their environment, start, and end. Start in `task_process`."""
