"""Tests of runner.recipes."""
