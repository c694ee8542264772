"""Tests of runner_infra.engine."""
