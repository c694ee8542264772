"""The Batch data plane over HTTP. Start in `app`: authentication, route, handler, commit,
answer. `versions` has the differences between api-versions.
"""
