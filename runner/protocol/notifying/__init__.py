"""Notifications and webhooks, for the agent and for `runner notify`; start in `documents`."""
