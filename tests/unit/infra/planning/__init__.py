"""Tests of runner_infra.planning."""
