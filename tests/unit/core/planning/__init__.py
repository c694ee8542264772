"""Tests of runner.core.planning."""
