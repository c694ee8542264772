"""What a test logged itself: threads that earlier tests left may log at any time."""

import logging
import threading

import pytest


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of the test's own thread."""
    return [each for each in caplog.records if each.thread == threading.get_ident()]
