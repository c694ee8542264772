"""Verbs of the local services and of an Azure environment. Start in `deploy`."""
