"""Tests of runner.core.packages."""
