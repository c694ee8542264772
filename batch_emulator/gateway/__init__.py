"""Azure's own host names for one command: a proxy on loopback that leads them to local services.

`command.py` runs the command, `proxy.py` takes its connections, `sign_in.py` answers for Microsoft
Entra ID and Azure Resource Manager, and `authority.py` makes the certificates.
"""
