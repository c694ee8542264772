"""Tests of runner.core.recipe."""
