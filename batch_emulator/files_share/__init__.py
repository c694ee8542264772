"""An emulator of the REST side of Azure Files: shares are folders, files are files.

A mounted folder and the share that a client reads over HTTP are the same.
"""
