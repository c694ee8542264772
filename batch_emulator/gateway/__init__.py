"""Azure's own host names for a command or tasks: a proxy on loopback leads them to local services.

`__main__.py` runs the command, `proxy.py` takes its connections, `sign_in.py` answers for Microsoft
Entra ID and Azure Resource Manager, and `authority.py` makes the certificates.
"""
