"""An emulator of the REST API of Azure Files: a share is a folder of this machine.

A mount and a client that uses HTTP see the same files.
"""
