"""Tests of runner.node.script."""
