"""Handlers of the Files service, one module per kind of resource."""
