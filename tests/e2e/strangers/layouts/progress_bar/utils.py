"""A progress bar as wide as the terminal."""

import os
import sys

_, width = os.popen("stty size", "r").read().split()
width = int(width) or 80


def progress_bar(done, of, text):
    bar = "=" * (20 * done // of)
    sys.stdout.write(f"\r[{bar:<20}] {text}"[:width])
    sys.stdout.write("\n" if done == of else "\r")
    sys.stdout.flush()
