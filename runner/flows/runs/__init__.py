"""Submitted runs: find, watch, list, read and cancel them. Start in `documents`."""
