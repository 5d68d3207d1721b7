"""How the bank's messages become Temporal payloads, with one set of validators for all workflows.

Temporal gives each workflow run a converter of its own, and pydantic's builds a validator for each type of message that
it meets. A validator is tens of KB and some milliseconds; a worker that keeps a thousand Loans in memory would hold a
thousand of each. What validators are built from, the bank's own models, is the same in every run: the workflow sandbox
passes our packages through.
"""

from typing import Final

from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter

_SHARED: Final = tuple(PydanticPayloadConverter().converters.values())


class BankPayloadConverter(CompositePayloadConverter):
    """Pydantic's converter; its parts are the same in every instance, and keep nothing of what they convert."""

    def __init__(self) -> None:
        super().__init__(*_SHARED)


DATA_CONVERTER: Final = DataConverter(payload_converter_class=BankPayloadConverter)
"""The converter of workers and their clients; payloads are the same as those of `pydantic_data_converter`."""
