"""Schedules: create one, find it, trigger it now, pause and remove it. Start in `create`."""
