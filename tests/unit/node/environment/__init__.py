"""Tests of runner.node.environment."""
