"""Tests of runner.api."""
