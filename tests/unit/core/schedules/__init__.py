"""Tests of runner.core.schedules."""
