"""Let Batch start a run, or a group of tasks, at set times.

It needs no extra and no other service: Batch has the times, blob storage the template. Start in
`create.py`. A firing becomes a run on the node, in `scheduled_run.py` and `scheduled_group.py` of
`runner.node.agent`, which only tasks of schedules import.
"""

VERBS = {"schedule": ("verbs", "app", "sweep")}
