"""Tests of runner.node.checkpoints."""
