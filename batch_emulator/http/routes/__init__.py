"""Handlers of requests, one module a resource; `table` lists every operation of the service."""
