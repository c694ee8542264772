"""Show runs in a browser and over REST: `runner ui`. It needs the extra `ui`.

A face beside `runner.cli` and `runner.api`, over the same flows. Start in `app.py`, which lists all
addresses. `pages` has one module for each page: what it reads, for a template of the same name.
Actions are commands of `runner`, which `actions.py` starts. The core never imports this package.
"""

VERBS = {"ui": ("verbs", "ui", "ps")}
