"""The bank's client where Temporal does not let it add search attributes."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.service import RPCError, RPCStatusCode

from gpubank.client import BankClient
from gpubank.domain.errors import BackendError
from workflows import attributes

REFUSALS = [RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED]


class Namespace:
    """A namespace as the operator service shows it; a status refuses a call."""

    def __init__(self, *, add: RPCStatusCode | None = None, read: RPCStatusCode | None = None) -> None:
        self.known = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in attributes.ALL}
        self.asked: list[str] = []
        self._add, self._read = add, read

    @property
    def client(self) -> BankClient:
        temporal: Any = SimpleNamespace(namespace="bank.a1b2c", operator_service=self)
        return BankClient(temporal)

    async def add_search_attributes(self, request: Any, *, timeout: Any) -> None:
        self._answer("add", request, self._add)
        self.known |= request.search_attributes

    async def list_search_attributes(self, request: Any, *, timeout: Any) -> Any:
        self._answer("list", request, self._read)
        return SimpleNamespace(custom_attributes=self.known)

    def _answer(self, what: str, request: Any, refusal: RPCStatusCode | None) -> None:
        self.asked.append(what)
        assert request.namespace == "bank.a1b2c"
        if refusal is not None:
            raise RPCError("Request unauthorized.", refusal, b"")


async def test_attributes_that_may_be_added_are(caplog: pytest.LogCaptureFixture) -> None:
    namespace = Namespace()
    wanted, namespace.known = namespace.known, {}
    await namespace.client.register_search_attributes()
    assert (namespace.known, namespace.asked) == (wanted, ["add"])
    assert caplog.messages == []


async def test_attributes_that_are_there_already_stay() -> None:
    namespace = Namespace(add=RPCStatusCode.ALREADY_EXISTS)
    await namespace.client.register_search_attributes()
    assert namespace.asked == ["add"]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_namespace_whose_admin_has_added_them_is_enough(
    refusal: RPCStatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = Namespace(add=refusal)
    namespace.known["Theirs"] = IndexedValueType.INDEXED_VALUE_TYPE_TEXT
    await namespace.client.register_search_attributes()
    assert namespace.asked == ["add", "list"]
    assert caplog.messages == []


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_attributes_that_its_admin_must_add_are_named_with_their_types(refusal: RPCStatusCode) -> None:
    namespace = Namespace(add=refusal)
    del namespace.known["GpuBankPool"], namespace.known["GpuBankLenders"], namespace.known["GpuBankDueAt"]
    with pytest.raises(BackendError) as raised:
        await namespace.client.register_search_attributes()
    assert str(raised.value) == (
        "search attributes of namespace 'bank.a1b2c', which this program may not add (Request unauthorized.), are"
        " missing: GpuBankPool (Keyword), GpuBankLenders (KeywordList), GpuBankDueAt (Datetime); have the namespace's"
        " admin add them"
    )


async def test_attributes_of_another_type_are_named_with_the_right_one() -> None:
    namespace = Namespace(add=RPCStatusCode.PERMISSION_DENIED)
    namespace.known["GpuBankGpus"] = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    with pytest.raises(BackendError) as raised:
        await namespace.client.register_search_attributes()
    other = "are of another type than GpuBankGpus (Int); have the namespace's admin remove them and add them anew"
    assert str(raised.value).endswith(f"(Request unauthorized.), {other}")
    del namespace.known["GpuBankPool"]
    with pytest.raises(BackendError) as both:
        await namespace.client.register_search_attributes()
    missing = "are missing: GpuBankPool (Keyword); have the namespace's admin add them"
    assert str(both.value).endswith(f"(Request unauthorized.), {missing}; others {other}")


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_attributes_that_may_not_be_listed_either_are_a_warning_that_names_them(
    refusal: RPCStatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    await Namespace(add=RPCStatusCode.PERMISSION_DENIED, read=refusal).client.register_search_attributes()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "search attributes of namespace 'bank.a1b2c' may be neither added nor listed (Request unauthorized.)"
    )
    assert [key.name for key in attributes.ALL if f"{key.name} (" not in record.getMessage()] == []


@pytest.mark.parametrize(
    ("add", "read"),
    [
        (RPCStatusCode.UNAVAILABLE, None),
        (RPCStatusCode.UNAUTHENTICATED, None),
        (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAVAILABLE),
    ],
)
async def test_a_server_that_fails_is_an_error_as_before(add: RPCStatusCode, read: RPCStatusCode | None) -> None:
    with pytest.raises(BackendError, match="search attributes: Temporal does not answer"):
        await Namespace(add=add, read=read).client.register_search_attributes()
