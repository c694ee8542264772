"""Redirect Azure's host names to local services, for a command or for tasks, by a loopback proxy.

Optional: it needs `cryptography` (extra `azure-names`) for its certificates, and the emulator's
HTTP API, Azure Files and Azurite to redirect to. Nothing of the emulator imports it except
`batch_emulator.__main__`, which starts it for tasks if that is asked for.

`__main__.py` reads options and keys, `command.py` runs the command, and `java.py` prepares it for
Java programs. `proxy.py` takes the connections and opens tunnels to all other hosts, `services.py`
knows the hosts that are served, `signatures.py` checks and signs requests, `sign_in.py` answers for
Microsoft Entra ID and Azure Resource Manager, and `authority.py` makes the certificates.
"""
