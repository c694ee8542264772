"""Record the version and the hashes of the Pulumi CLI that `runner up` installs.

Usage: python -m tools.pulumi_hashes VERSION [FILE]

FILE is the checksum file of the release (`pulumi-VERSION-checksums.txt`), or Pulumi's Homebrew
formula for this version; without it, the checksum file is downloaded from GitHub.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_HASHES = _ROOT / "infra/runner_infra/engine/pulumi_cli.json"
_RELEASE = "https://github.com/pulumi/pulumi/releases/download"
_PLATFORMS = ("darwin-arm64", "darwin-x64", "linux-arm64", "linux-x64")


def read_hashes(version: str, text: str) -> dict[str, str]:
    """Return the hash of each platform from a checksum file or a formula.

    Raises:
        ValueError: a platform is missing.
    """
    name = rf"pulumi-v{re.escape(version)}-([a-z]+-[a-z0-9]+)\.tar\.gz"
    lines = re.findall(rf"^([0-9a-f]{{64}})\s+\*?{name}$", text, re.MULTILINE)
    found = {platform: sha256 for sha256, platform in lines}
    found |= re.findall(rf'{name}"\s+sha256 "([0-9a-f]{{64}})"', text)
    missing = [platform for platform in _PLATFORMS if platform not in found]
    if missing:
        raise ValueError(f"no hash of Pulumi {version} for {', '.join(missing)}")
    return {platform: found[platform] for platform in _PLATFORMS}


def main(version: str, file: str | None = None) -> None:
    """Write the file of the hashes."""
    source = f"{_RELEASE}/v{version}/pulumi-{version}-checksums.txt"
    if file is None:
        with urllib.request.urlopen(source, timeout=60) as reply:
            text = reply.read().decode("utf-8")
    else:
        text = Path(file).read_text("utf-8")
    content = {"version": version, "sha256": read_hashes(version, text)}
    _HASHES.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    print(f"wrote {_HASHES.relative_to(_ROOT)}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
