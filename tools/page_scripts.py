"""Put the scripts of the page into .cache/page, from where the build takes them into a wheel.

`make dist` runs it. npm installs the packages with the hashes of runner/page/packages.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from runner.core.home import HomePaths
from runner.core.progress import Progress
from runner.page.assets import LICENCES, SCRIPTS, install_scripts
from runner.protocol.errors import RunnerError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "page"


def main() -> int:
    """Write the files and return the exit code."""
    with tempfile.TemporaryDirectory() as home:
        try:
            modules = install_scripts(HomePaths(Path(home)), _show)
        except RunnerError as err:
            print(f"error[{err.code}]: {err.what}\n  why: {err.why}", file=sys.stderr)
            return int(err.exit_code)
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        for name, inside in (SCRIPTS | LICENCES).items():
            shutil.copy(modules / inside, FOLDER / name)
    return 0


def _show(progress: Progress) -> None:
    print(progress.message, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
