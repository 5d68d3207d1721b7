"""What an API server refuses, as errors of the bank.

* BackendError
  + ApiError               the server answered with a refusal
    - ApiNotFoundError       no such object, or no such kind
  + WatchExpiredError      the version that a watch wanted to go on from is no longer served
* ConflictError            409: written against an old version, or created although it is there
"""

from typing import Any

import httpx2

from gpubank.domain.errors import BackendError, ConflictError


class ApiError(BackendError):
    """The API server refused a call; `status` is its Status object."""

    def __init__(self, message: str, status: dict[str, Any]) -> None:
        super().__init__(message)
        self.status = status

    @property
    def code(self) -> int:
        """The HTTP status."""
        return int(self.status.get("code") or 0)

    @property
    def reason(self) -> str:
        """One word, as in `Forbidden`."""
        return str(self.status.get("reason") or "")

    @property
    def detail(self) -> str:
        """What the server says in words."""
        return str(self.status.get("message") or "")

    @property
    def causes(self) -> list[dict[str, Any]]:
        """Every broken rule with field, reason and message, where the server names them."""
        return list((self.status.get("details") or {}).get("causes") or [])

    @property
    def is_refusal(self) -> bool:
        """Whether the object itself is at fault, so that sending it again cannot help."""
        return self.code in (400, 403, 413, 422)


class ApiNotFoundError(ApiError):
    """No such object, or no such kind."""


class WatchExpiredError(BackendError):
    """The version that a watch wanted to go on from is no longer served; list again."""


def raise_for(response: httpx2.Response, what: str) -> None:
    """Raise the error that an answer stands for; nothing for a success."""
    if not response.is_error:
        return
    status = _status(response)
    message = f"{what} is refused with {response.status_code}: {status.get('message') or response.reason_phrase}"
    match response.status_code:
        case 404:
            raise ApiNotFoundError(message, status)
        case 409:
            raise ConflictError(message)
        case 410:
            raise WatchExpiredError(message)
        case _:
            raise ApiError(message, status)


def _status(response: httpx2.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        found = None
    status = found if isinstance(found, dict) else {"message": response.text[:500]}
    return status | {"code": response.status_code}
