"""Pack the agent into one file that any `python3` runs.

`python -m runner.flows.submit.agent_archive OUT` writes it to a file.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

# The earliest date of the zip format. It is fixed, so that equal sources give equal bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)
MAIN = "from runner.node.agent.main import start\n\nstart()\n"


def build_agent() -> bytes:
    """Return the agent as a `.pyz` whose bytes depend on the sources only.

    It is not compressed: compressed bytes differ between zlib versions, and start-up is quicker.
    """
    root = Path(__file__).parents[2]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", MAIN)
        _add(archive, "runner/__init__.py", "")
        for package in ("hooks", "node", "protocol"):
            for source in sorted((root / package).rglob("*.py")):
                name = source.relative_to(root).as_posix()
                if name != "node/__main__.py":
                    _add(archive, f"runner/{name}", source.read_text(encoding="utf-8"))
    return b"#!/usr/bin/env python3\n" + packed.getvalue()


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix, also when packed on Windows
    archive.writestr(info, text.encode())


def main() -> None:
    """Write the agent to the path on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m runner.flows.submit.agent_archive OUT")
    Path(sys.argv[1]).write_bytes(build_agent())


if __name__ == "__main__":
    main()
