"""Tests of runner.node.agent."""
