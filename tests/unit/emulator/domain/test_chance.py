"""Draws for machines: the published generator, the right distributions, independent of order."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest

from batch_emulator.domain.chance import chance_key, draw_normal, draw_uniform, draw_wait

KEY = chance_key(5, "evict", "pool")
MACHINES = [(node, machine) for node in range(200) for machine in range(1, 51)]


def test_uniform_draws_are_the_sequence_of_splitmix64() -> None:
    """The expected values are those of Vigna's reference implementation with seed 0."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [draw_uniform(0, 0, n) for n in (1, 2, 3)] == [(each + 1) / 2**64 for each in expected]


def test_waits_have_mean_and_deviation_of_an_exponential() -> None:
    waits = [draw_wait(KEY, node, machine, 3600.0) for node, machine in MACHINES]
    assert fmean(waits) == pytest.approx(3600, rel=0.03)
    assert stdev(waits) == pytest.approx(3600, rel=0.05)
    assert min(waits) >= 0


def test_normal_draws_have_mean_zero_and_deviation_one() -> None:
    drawn = [draw_normal(KEY, node, machine) for node, machine in MACHINES]
    assert fmean(drawn) == pytest.approx(0, abs=0.03)
    assert stdev(drawn) == pytest.approx(1, rel=0.03)


def test_purposes_pools_and_machines_have_different_draws() -> None:
    keys = [KEY, chance_key(5, "away", "pool"), chance_key(5, "evict", "p"), chance_key(6, "evict")]
    drawn = {draw_uniform(key, node, machine) for key in keys for node, machine in MACHINES}
    assert len(drawn) == len(keys) * len(MACHINES)
