from __future__ import annotations

from datetime import date

import pytest

from runner.core.pricing.machines import (
    REGIONS,
    family_key,
    find_machine,
    machine,
    machines,
    region_name,
    unknown_machine,
)
from runner.protocol.errors import ExitCode, RunnerError

TODAY = date(2026, 11, 21)


def test_vm_size_is_found_in_any_case():
    found = find_machine("standard_nc4as_t4_V3")
    assert found is not None
    assert found.vm_size == "Standard_NC4as_T4_v3"
    assert (found.gpu, found.gpus, found.vcpus, found.memory_gib) == ("T4", 1, 4, 28)
    assert found.driver == "cuda"


def test_fraction_of_an_a10_is_one_device_with_part_of_its_memory():
    found = machine("Standard_NV12ads_A10_v5", TODAY)
    assert (found.gpus, found.gpu_memory_gib, found.driver) == (1, 8, "grid")


def test_vm_size_without_gpu_has_no_devices():
    found = machine("Standard_D4s_v5", TODAY)
    assert (found.gpu, found.gpus, found.gpu_memory_gib, found.driver) == (None, 0, None, None)


def test_unknown_vm_size_names_similar_ones():
    with pytest.raises(RunnerError) as caught:
        machine("Standard_NC4as_T4_v4", TODAY)
    assert caught.value.code == "R-MACHINE-UNKNOWN"
    assert "Standard_NC4as_T4_v3" in caught.value.why
    assert caught.value.exit_code == ExitCode.PREFLIGHT


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("NC16", "Standard_NC16as_T4_v3"),
        ("nc16as_t4_v3", "Standard_NC16as_T4_v3"),
        ("Standard_NC24", "Standard_NC24ads_A100_v4"),
        ("nc24ads a100", "Standard_NC24ads_A100_v4"),
        ("standard-nc8as-t4-v3", "Standard_NC8as_T4_v3"),
        ("ND96", "Standard_ND96isr_H100_v5"),
        ("T4", "Standard_NC4as_T4_v3"),
    ],
)
def test_short_names_and_gpus_find_the_sizes(text: str, near: str):
    assert near in unknown_machine(text).why


def test_vm_size_without_similar_names_is_unknown():
    with pytest.raises(RunnerError) as caught:
        machine("gpu please", TODAY)
    assert caught.value.code == "R-MACHINE-UNKNOWN"


def test_retired_vm_sizes_are_not_suggested():
    with pytest.raises(RunnerError) as caught:
        machine("Standard_NC6s_v4", TODAY)
    assert "Standard_NC6s_v3" not in caught.value.why


@pytest.mark.parametrize(
    ("vm_size", "successor"),
    [
        ("Standard_NC6", "Standard_NC4as_T4_v3"),
        ("Standard_NC6s_v3", "Standard_NC40ads_H100_v5"),
        ("Standard_NV12s_v3", "Standard_NV12ads_A10_v5"),
        ("standard_nv4as_v4", "Standard_NV12ads_A10_v5"),
    ],
)
def test_retired_vm_size_names_its_successor(vm_size: str, successor: str):
    with pytest.raises(RunnerError) as caught:
        machine(vm_size, TODAY)
    assert caught.value.code == "R-MACHINE-RETIRED"
    assert successor in caught.value.fix


def test_vm_size_is_valid_until_the_day_of_retirement():
    assert machine("Standard_NV12s_v3", date(2026, 9, 29)).retired == date(2026, 9, 30)
    with pytest.raises(RunnerError):
        machine("Standard_NV12s_v3", date(2026, 9, 30))


def test_all_rows_are_complete_and_unique():
    found = machines()
    assert len({each.vm_size.lower() for each in found}) == len(found)
    for each in found:
        assert each.vcpus > 0
        assert each.memory_gib > 0
        assert (each.gpu is None) == (each.gpus == 0) == (each.gpu_memory_gib is None)
        if each.retired is not None:
            assert each.successor is not None
            successor = find_machine(each.successor)
            assert successor is not None
            assert successor.retired is None


def test_spellings_of_a_quota_family_have_one_key():
    assert family_key("Standard NCASv3_T4 Family") == family_key("standardNCASv3_T4Family")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("eastus", "eastus"),
        ("EastUS", "eastus"),
        ("East US", "eastus"),
        ("east us 2", "eastus2"),
        (" West Europe ", "westeurope"),
        ("(Europe) West Europe", "westeurope"),
        ("(US) East US 2", "eastus2"),
        ("sweden-central", "swedencentral"),
        ("Sweden_Central", "swedencentral"),
    ],
)
def test_region_has_one_name_in_every_spelling(text: str, name: str):
    assert region_name(text) == name
    assert name in REGIONS


@pytest.mark.parametrize("text", ["", "East/US", "(US)", "Ostküste"])
def test_text_that_is_no_region_stays_as_written(text: str):
    assert region_name(text) == text


def test_all_gpu_sizes_have_a_quota_family():
    assert [each.vm_size for each in machines() if each.gpu and not each.family] == []


def test_size_without_new_capacity_names_a_newer_one():
    noted = [each for each in machines() if each.note]
    assert {each.gpu for each in noted} == {"A100"}
    for each in noted:
        newer = find_machine(each.successor or "")
        assert newer is not None
        assert not newer.note
        assert newer.retired is None


def test_successors_get_new_capacity():
    successors = {each.successor for each in machines() if each.successor}
    assert not [size for size in successors if (found := find_machine(size)) and found.note]
