"""Names of GPUs: class, partition and sharing, each in its place and never more than what a holder gets."""

import pytest

from gpubank.domain.device import FULL, Offer, Sharing, partition_of

SLICE, TURNS = "mig-1g.10gb", Sharing.TIME_SLICING


@pytest.mark.parametrize(
    ("offer", "name"),
    [
        (Offer("h100-80gb"), "h100-80gb"),
        (Offer("h100-80gb", SLICE), "h100-80gb.mig-1g.10gb"),
        (Offer("h100-80gb", FULL, TURNS), "h100-80gb.shared"),
        (Offer("h100-80gb", SLICE, TURNS), "h100-80gb.mig-1g.10gb.shared"),
        (Offer("h100-80gb", "mig-1c.2g.20gb.me"), "h100-80gb.mig-1c.2g.20gb.me"),
    ],
)
def test_a_resource_says_all_three_and_reads_back(offer: Offer, name: str) -> None:
    assert offer.resource == f"accelerator.aik8s.run/{name}"
    assert Offer.of(offer.resource) == offer


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu",
        "h100-80gb",
        "accelerator.aik8s.run/",
        "accelerator.aik8s.run/H100",
        "accelerator.aik8s.run/h100-80gb.",
        "accelerator.aik8s.run/h100-80gb.full",
        "accelerator.aik8s.run/h100-80gb.half",
        "accelerator.aik8s.run/h100-80gb.mig-1g",
        "accelerator.aik8s.run/h100-80gb.unshared",
    ],
)
def test_what_is_not_spelt_as_the_bank_spells_it_is_none_of_its_resources(resource: str) -> None:
    assert Offer.of(resource) is None


@pytest.mark.parametrize(
    ("profile", "partition"),
    [
        ("", FULL),
        ("1g.10gb", SLICE),
        ("1G.10GB", SLICE),
        ("1g.10gb+me", "mig-1g.10gb.me"),
        ("2g.20gb-me", "mig-2g.20gb.me"),
    ],
)
def test_a_mig_profile_names_its_partition(profile: str, partition: str) -> None:
    assert partition_of(profile) == partition
