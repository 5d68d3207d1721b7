"""The lab serves."""

from gpubank.lab import Lab


def test_the_lab_is_whole_once_up(lab: Lab) -> None:
    assert lab.is_up()
