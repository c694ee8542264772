"""Tests of runner_infra.config."""
