"""Tests of runner.features.selftest."""
