"""GPM: what the hardware counted between two samples; Hopper and later only.

Two samples are kept per device and take turns, so that each collection shows the time since the one before. Every
sample is freed, for NVML allocates it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

METRICS: Final[Mapping[str, int]] = {
    "gr_engine_active": 1,
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
    "fp16_active": 13,
}
"""Quantities of a GPU or a GPU instance by GPM's numbers, in percent."""

TRAFFIC: Final[Mapping[str, int]] = {"pcie_tx": 20, "pcie_rx": 21}
"""Byte rates of a physical GPU."""


class GpmSamples:
    """The two samples of one GPU or GPU instance."""

    def __init__(self, nvml: Any, wanted: Mapping[str, int]) -> None:
        self._nvml = nvml
        self.wanted = dict(wanted)
        """Numbers of GPM by quantity."""
        self._older: Any = None
        self._newer: Any = None

    def take(self, handle: Any, gi: int | None) -> dict[str, float]:
        """Take a sample and return what was counted since the last one; nothing the first time.

        Raises NVMLError.
        """
        nvml = self._nvml
        if self._older is None:
            self._older = nvml.nvmlGpmSampleAlloc()
            self._sample(handle, gi, self._older)
            return {}
        if self._newer is None:
            self._newer = nvml.nvmlGpmSampleAlloc()
        self._sample(handle, gi, self._newer)
        try:
            return dict(self._compare())
        finally:
            self._older, self._newer = self._newer, self._older

    def free(self) -> None:
        """Give the samples back; never raises."""
        for sample in (self._older, self._newer):
            if sample is not None:
                try:
                    self._nvml.nvmlGpmSampleFree(sample)
                except self._nvml.NVMLError:
                    continue
        self._older = self._newer = None

    def _sample(self, handle: Any, gi: int | None, sample: Any) -> None:
        if gi is None:
            self._nvml.nvmlGpmSampleGet(handle, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(handle, gi, sample)

    def _compare(self) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version = nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2 = self._older, self._newer
        asked.numMetrics = len(self.wanted)
        for place, number in enumerate(self.wanted.values()):
            asked.metrics[place].metricId = number
        nvml.nvmlGpmMetricsGet(asked)
        for place, key in enumerate(self.wanted):
            metric = asked.metrics[place]
            if metric.nvmlReturn == nvml.NVML_SUCCESS:
                yield key, float(metric.value)
