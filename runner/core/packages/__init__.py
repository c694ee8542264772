"""Which packages and which Python a project asks for, and why some cannot be installed.

Start in `sources`, which chooses the file. `requirements` checks a requirements file, `lock_files`
pins what a lock file says, and `python_request` reads versions of Python. `failures` finds what to
correct in the message of a node.
"""
