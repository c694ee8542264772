"""Redirect Azure's host names to local services, for a command or for tasks, by a loopback proxy.

`__main__.py` runs the command, `proxy.py` takes its connections, `sign_in.py` answers for Microsoft
Entra ID and Azure Resource Manager, and `authority.py` makes the certificates.
"""
