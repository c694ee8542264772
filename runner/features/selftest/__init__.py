"""Compare a target with the emulator, request by request, and train a recipe on it.

On Azure it needs the extra `infra`, to deploy a stack of its own. Start in `selftest.py`;
`scenario.py` has the requests as data.
"""

VERBS = {"selftest": ("verbs", "selftest", "image")}
