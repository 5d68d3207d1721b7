"""What collection has made is kept until the end, so the garbage collector need not look at it again and again.

Every look at a million objects of a few thousand tests and all that they import costs a tenth of the processor's time.
"""

import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
