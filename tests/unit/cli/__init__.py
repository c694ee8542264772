"""Tests of runner.cli."""
