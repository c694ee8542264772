"""An emulator of the REST side of Azure Files: shares are folders, files are files.

What a task writes through a mounted folder and what a client reads over HTTP is one and the same.
"""
