"""Tests of runner.core.plots."""
