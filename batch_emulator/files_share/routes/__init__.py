"""Handlers of the Files service, one module a kind of resource; `files_share.table` lists the
operations.
"""
