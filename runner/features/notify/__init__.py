"""Check the webhook of a recipe from this machine, and list the notifications of a run.

The agent sends them without this package (`runner/node/agent/notifications.py`). It needs no extra.
Start in `verbs.py`.
"""

VERBS = {"notify": ("verbs", "app", "attach")}
