"""Tests of runner_infra.policy."""
