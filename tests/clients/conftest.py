"""Fixtures of the tests with other clients."""

from tests.contract.conftest import conforms

__all__ = ["conforms"]
