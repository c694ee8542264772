"""Tests of runner.core."""
