from gpubank.domain.base import ApiModel
from gpubank.schema.described import descriptions


class Plain(ApiModel):
    size: int
    """GPUs that
    it has."""

    name: str
    """What it is called."""

    bare: int = 0


class Special(Plain):
    name: str = "special"
    price: int = 1
    """What it costs."""


def test_a_field_is_described_by_the_docstring_below_it() -> None:
    assert descriptions(Plain) == {"size": "GPUs that\nit has.", "name": "What it is called."}


def test_a_field_keeps_its_words_in_a_subclass_until_it_is_declared_anew() -> None:
    assert descriptions(Special) == {"size": "GPUs that\nit has.", "price": "What it costs."}
