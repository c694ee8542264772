"""Tests of infra.planning."""
