"""The regions of Azure's clouds, for warnings about names that may be misspelt.

https://learn.microsoft.com/azure/reliability/regions-list (read 2026-11-22). Azure adds regions, so
an unknown name is no error.
"""

from __future__ import annotations

_PUBLIC = """
    australiacentral australiacentral2 australiaeast australiasoutheast austriaeast belgiumcentral
    brazilsouth brazilsoutheast canadacentral canadaeast centralindia centralus chilecentral
    denmarkeast eastasia eastus eastus2 francecentral francesouth germanynorth germanywestcentral
    indonesiacentral israelcentral italynorth japaneast japanwest jioindiacentral jioindiawest
    koreacentral koreasouth malaysiawest mexicocentral newzealandnorth northcentralus northeurope
    norwayeast norwaywest polandcentral qatarcentral southafricanorth southafricawest
    southcentralus southeastasia southindia spaincentral swedencentral swedensouth
    switzerlandnorth switzerlandwest uaecentral uaenorth uksouth ukwest westcentralus westeurope
    westindia westus westus2 westus3
"""
_GOVERNMENT = "usdodcentral usdodeast usgovarizona usgovtexas usgovvirginia"
_CHINA = "chinaeast chinaeast2 chinaeast3 chinanorth chinanorth2 chinanorth3"
REGIONS = frozenset(f"{_PUBLIC} {_GOVERNMENT} {_CHINA}".split())


def region_name(text: str) -> str:
    """Return a region in the form `westeurope`, also for `West Europe`."""
    return text.replace(" ", "").lower()
