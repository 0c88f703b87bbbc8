"""Errors in the shape that OpenAI clients read: ``{"error": {"message", "type", "param", "code"}}``, code = status."""

from __future__ import annotations

import msgspec

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """A request that is answered with an error; ``param`` names the field that is wrong."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def error_body(status: int, message: str, *, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def unknown_model(name: str) -> ApiError:
    return ApiError(404, f"The model `{name}` does not exist.", param="model")


def context_too_long(limit: int, prompt_tokens: int, max_tokens: int, *, chat: bool) -> ApiError:
    what, where = ("messages", "messages") if chat else ("prompt", "prompt")
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt_tokens + max_tokens} "
        f"tokens ({prompt_tokens} in the {what}, {max_tokens} in the completion). Please reduce the length of the "
        f"{what} or completion.",
        param=where,
    )
