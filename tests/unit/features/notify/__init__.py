"""Tests of runner.protocol."""
