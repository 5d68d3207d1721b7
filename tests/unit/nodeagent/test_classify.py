"""Which class a product belongs to: real names, their look-alikes, and everything that must not be guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubank.domain.device import UNKNOWN_CLASS
from nodeagent.classes import rules
from nodeagent.classes.classify import classify
from nodeagent.classes.facts import Facts, normalised

RULES = rules.load()

PRODUCTS = [
    # name, MiB as nvidia-smi reports it, compute capability, class
    ("NVIDIA H100 80GB HBM3", 81559, "9.0", "h100-80gb"),
    ("NVIDIA H100 PCIe", 81559, "9.0", "h100-pcie-80gb"),
    ("NVIDIA H100 NVL", 95830, "9.0", "h100-nvl-94gb"),
    ("NVIDIA H100", 95830, "9.0", "h100-94gb"),
    ("NVIDIA H100", 97871, "9.0", "h100-96gb"),
    ("NVIDIA GH200 480GB", 97871, "9.0", "gh200-96gb"),
    ("NVIDIA GH200 120GB", 97871, "9.0", "gh200-96gb"),
    ("NVIDIA GH200 144G HBM3e", 146831, "9.0", "gh200-144gb"),
    ("NVIDIA H200", 143771, "9.0", "h200-141gb"),
    ("NVIDIA H200 NVL", 143771, "9.0", "h200-nvl-141gb"),
    ("NVIDIA H20", 97871, "9.0", "h20-96gb"),
    ("NVIDIA H20-3e", 143771, "9.0", "h20-141gb"),
    ("NVIDIA H800", 81559, "9.0", "h800-80gb"),
    ("NVIDIA A100-SXM4-40GB", 40960, "8.0", "a100-40gb"),
    ("A100-SXM4-40GB", 40537, "8.0", "a100-40gb"),
    ("NVIDIA A100-PCIE-40GB", 40960, "8.0", "a100-40gb"),
    ("NVIDIA A100-SXM4-80GB", 81920, "8.0", "a100-80gb"),
    ("NVIDIA A100-SXM4-80GB", 81251, "8.0", "a100-80gb"),
    ("NVIDIA A100 80GB PCIe", 81920, "8.0", "a100-80gb"),
    ("NVIDIA A100-SXM-64GB", 65536, "8.0", "a100-64gb"),
    ("NVIDIA A800-SXM4-80GB", 81920, "8.0", "a800-80gb"),
    ("NVIDIA A30", 24576, "8.0", "a30-24gb"),
    ("NVIDIA A40", 46068, "8.6", "a40-48gb"),
    ("NVIDIA A10", 23028, "8.6", "a10-24gb"),
    ("NVIDIA A10G", 23028, "8.6", "a10g-24gb"),
    ("NVIDIA A10G", 22731, "8.6", "a10g-24gb"),
    ("NVIDIA A2", 15356, "8.6", "a2-16gb"),
    ("NVIDIA A16", 15356, "8.6", "a16-16gb"),
    ("NVIDIA L4", 23034, "8.9", "l4-24gb"),
    ("NVIDIA L40", 46068, "8.9", "l40-48gb"),
    ("NVIDIA L40S", 46068, "8.9", "l40s-48gb"),
    ("NVIDIA L40S", 49140, "8.9", "l40s-48gb"),
    ("NVIDIA L20", 46068, "8.9", "l20-48gb"),
    ("Tesla T4", 15360, "7.5", "t4-16gb"),
    ("Tesla T4", 15109, "7.5", "t4-16gb"),
    ("Tesla V100-SXM2-16GB", 16160, "7.0", "v100-16gb"),
    ("Tesla V100-SXM2-32GB", 32510, "7.0", "v100-32gb"),
    ("Tesla V100-PCIE-16GB", 16384, "7.0", "v100-16gb"),
    ("Tesla V100S-PCIE-32GB", 32768, "7.0", "v100s-32gb"),
    ("Tesla P100-PCIE-16GB", 16384, "6.0", "p100-16gb"),
    ("NVIDIA B200", 183359, "10.0", "b200-180gb"),
    ("NVIDIA GB200", 189471, "10.0", "gb200-186gb"),
    ("NVIDIA B300 SXM6 AC", 275040, "10.3", "b300-270gb"),
    ("NVIDIA GB300", 284208, "10.3", "gb300-278gb"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "12.0", "rtx-pro-6000-server-96gb"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "12.0", "rtx-pro-6000-96gb"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "12.0", "rtx-pro-6000-maxq-96gb"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "8.9", "rtx-6000-ada-48gb"),
    ("Quadro RTX 6000", 24576, "7.5", "quadro-rtx-6000-24gb"),
    ("NVIDIA RTX A6000", 49140, "8.6", "rtx-a6000-48gb"),
    ("NVIDIA GeForce RTX 4090", 24564, "8.9", "geforce-rtx-4090-24gb"),
    ("NVIDIA GeForce RTX 3090", 24576, "8.6", "geforce-rtx-3090-24gb"),
    ("NVIDIA GeForce RTX 5090", 32607, "12.0", "geforce-rtx-5090-32gb"),
]

STRANGERS = [
    pytest.param("NVIDIA H100 80GB HBM3", 95830, "", id="the memory of another H100"),
    pytest.param("NVIDIA H100", 81559, "", id="a bare H100 whose memory fits none"),
    pytest.param("NVIDIA H100 NVL", 81559, "", id="an NVL with the memory of a PCIe card"),
    pytest.param("NVIDIA H100 80GB HBM2e", 81559, "", id="an H100 with other memory chips"),
    pytest.param("NVIDIA A100-SXM4-40GB", 81920, "", id="the memory of the bigger A100"),
    pytest.param("NVIDIA A100-SXM4-80GB", 40960, "", id="the memory of the smaller A100"),
    pytest.param("NVIDIA L40G", 24564, "", id="L40G is neither L4 nor L40"),
    pytest.param("NVIDIA L400", 23034, "", id="a name that begins like L4"),
    pytest.param("NVIDIA A10M", 23028, "", id="A10M is neither A10 nor A10G"),
    pytest.param("NVIDIA A10-24Q", 23028, "", id="a vGPU of an A10"),
    pytest.param("GRID T4-16Q", 15360, "", id="a vGPU of a T4"),
    pytest.param("NVIDIA T400 4GB", 4096, "", id="T400 is no T4"),
    pytest.param("NVIDIA H20 NVL16", 97871, "", id="a new H20"),
    pytest.param("NVIDIA GeForce RTX 4090 D", 24564, "", id="the export version"),
    pytest.param("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "", id="the laptop version"),
    pytest.param("NVIDIA RTX 6000", 24576, "", id="neither Quadro nor Ada"),
    pytest.param("NVIDIA H100 80GB HBM3", 81559, "8.0", id="a capability that contradicts the name"),
    pytest.param("AMD Instinct MI300X", 196592, "", id="another maker"),
    pytest.param("", 81559, "", id="no name"),
    pytest.param("H100", 81559, "", id="a nickname"),
    pytest.param("NVIDIA H100 80GB HBM3 or so", 81559, "", id="a longer name"),
]


@pytest.mark.parametrize(("name", "memory", "capability", "want"), PRODUCTS)
def test_a_known_product_has_its_class(name: str, memory: int, capability: str, want: str) -> None:
    verdict = classify(Facts(name, memory, capability), RULES)
    assert (verdict.device_class, verdict.resource) == (want, f"accelerator.aik8s.run/{want}")
    assert classify(Facts(name, memory), RULES) == verdict  # the capability is a check, not needed


def test_the_table_names_at_least_25_models() -> None:
    assert len({want for *_, want in PRODUCTS}) >= 25


@pytest.mark.parametrize(("name", "memory", "capability"), STRANGERS)
def test_what_no_rule_names_is_in_quarantine_with_a_reason(name: str, memory: int, capability: str) -> None:
    verdict = classify(Facts(name, memory, capability), RULES)
    assert (verdict.device_class, verdict.resource) == (UNKNOWN_CLASS, None)
    assert verdict.reason.startswith("quarantine: ")


def test_memory_that_is_not_reported_is_no_reason_to_guess() -> None:
    assert classify(Facts("NVIDIA H100 80GB HBM3", None), RULES).quarantined


@pytest.mark.parametrize(
    ("name", "memory", "profile", "want"),
    [
        pytest.param("NVIDIA H100 80GB HBM3", 81559, "1g.10gb", "h100-80gb.mig-1g.10gb", id="memory of the GPU"),
        pytest.param("NVIDIA H100 80GB HBM3", 9984, "1g.10gb", "h100-80gb.mig-1g.10gb", id="memory of the slice"),
        pytest.param("NVIDIA H100 80GB HBM3", 81559, "1g.10gb+me", "h100-80gb.mig-1g.10gb.me", id="with media engines"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, "", "a100-40gb.mig-1g.5gb", id="profile in the name"),
        pytest.param("NVIDIA A100-SXM4-40GB", 40960, "3g.20gb", "a100-40gb.mig-3g.20gb", id="A100"),
        pytest.param("NVIDIA H200", 18176, "1G.18GB", "h200-141gb.mig-1g.18gb", id="upper case"),
    ],
)
def test_a_mig_device_is_named_by_its_slice(name: str, memory: int, profile: str, want: str) -> None:
    verdict = classify(Facts(name, memory, mig_profile=profile), RULES)
    assert verdict.resource == f"accelerator.aik8s.run/{want}"


@pytest.mark.parametrize(
    ("name", "memory", "profile"),
    [
        pytest.param("NVIDIA H100 80GB HBM3", 4864, "1g.10gb", id="slice of another GPU"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, "2g.10gb", id="name and profile contradict"),
        pytest.param("NVIDIA A100-SXM4-40GB", 40960, "half", id="no profile"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG Device", 4864, "", id="a MIG device without profile"),
        pytest.param("NVIDIA H100", 11000, "1g.12gb", id="fits two classes"),
    ],
)
def test_a_slice_that_cannot_be_placed_is_in_quarantine(name: str, memory: int, profile: str) -> None:
    assert classify(Facts(name, memory, mig_profile=profile), RULES).quarantined


def test_a_partition_that_is_not_published_has_a_class_but_no_resource() -> None:
    verdict = classify(Facts("NVIDIA A100-SXM4-40GB", 40960, mig_profile="5g.25gb"), RULES)
    assert (verdict.device_class, verdict.partition, verdict.resource) == ("a100-40gb", "mig-5g.25gb", None)
    assert "not published" in verdict.reason


def test_the_pci_id_decides_nothing() -> None:
    one, other = (Facts("NVIDIA L4", 23034, pci_device_id=pci) for pci in ("10de:27b8", "10de:2330"))
    assert classify(one, RULES) == classify(other, RULES)


@pytest.mark.parametrize("spelling", ["NVIDIA-L40S", "nvidia l40s", "L40S", "NVIDIA(R) L40S", " NVIDIA  L40S "])
def test_spelling_does_not_make_another_product(spelling: str) -> None:
    assert classify(Facts(spelling, 46068), RULES).device_class == "l40s-48gb"


@given(
    name=st.text(max_size=60), memory=st.integers(-1, 10**9), capability=st.text(max_size=5), mig=st.text(max_size=9)
)
def test_no_text_makes_it_raise_and_only_listed_names_have_a_class(
    name: str, memory: int, capability: str, mig: str
) -> None:
    verdict = classify(Facts(name, memory, capability, mig_profile=mig), RULES)
    assert verdict.quarantined or any(known in normalised(name) for known in RULES.by_product)


@given(
    product=st.sampled_from(sorted(RULES.by_product)),
    tail=st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=6),
    memory=st.integers(1024, 300_000),
)
def test_a_longer_or_shorter_name_never_falls_to_a_neighbour(product: str, tail: str, memory: int) -> None:
    for name in (f"{product} {tail}", f"{product}{tail}", product[:-1]):
        if name not in RULES.by_product:
            assert classify(Facts(f"NVIDIA {name}", memory), RULES).quarantined


@given(product=st.sampled_from(sorted(RULES.by_product)), memory=st.integers(1, 400_000))
def test_a_class_holds_its_whole_band_and_nothing_beside_it(product: str, memory: int) -> None:
    found = [known for known in RULES.by_product[product] if known.memory_min_mib <= memory <= known.memory_max_mib]
    want = found[0].name if found else UNKNOWN_CLASS
    assert classify(Facts(product, memory), RULES).device_class == want
