"""Tests of runner.node.distributed."""
