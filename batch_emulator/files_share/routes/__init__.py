"""Handlers of the Files service, one module a kind of resource; `files_share.app` lists the
operations.
"""
