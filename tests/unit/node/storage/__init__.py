"""Tests of runner.node.storage."""
