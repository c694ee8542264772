"""The emulator's page (`--ui`): pools, nodes, jobs, tasks, files, requests and events, and actions.

Start reading in `server.py`, which answers on a port of its own. `guard.py` decides who may look
and act, `views/` has one module for each kind of page, `markup.py` writes escaped HTML, and
`request_log.py` records the requests of the other ports while the page is served. A page reads
and acts through the emulator's own HTTP API, within this process (`api_client.py`), so that it
shows and does only what a client of the API can.
"""
