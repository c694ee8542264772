"""Tests of infra.policy."""
