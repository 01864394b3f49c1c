"""Decides whether a report that failed can be repeated as it is."""

import grpc
import grpc.aio

from .channel import ERROR_CODE_KEY, status_text

# The server cannot store something in the report.
REFUSED_CODES = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)
# A smaller report is not refused for its size by anything between a worker and its server, nor is it slow because of it.
LARGE_BYTES = 64 * 1024
# How gRPC describes the answer of a proxy that speaks HTTP only. The code is UNKNOWN.
HTTP_TOO_LARGE = "http2 header with status: 413"


def refusal(error: grpc.aio.AioRpcError, size: int) -> str | None:
    """Why a report of `size` bytes will never be accepted as it is. `None`: a repeated one may be."""
    if error.code() in REFUSED_CODES:
        return f"the server refused the result: {error.details() or status_text(error)}"
    if size >= LARGE_BYTES and _is_too_large(error):
        return (
            f"the report of the result has {size} bytes, too many for a proxy in front of the server: "
            f"store the data elsewhere and return a reference ({status_text(error)})"
        )
    return None


def is_too_slow(error: grpc.aio.AioRpcError, size: int) -> bool:
    """A report of `size` bytes was not sent, or not answered, in time: over a slow connection a smaller one may be."""
    return size >= LARGE_BYTES and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def _is_too_large(error: grpc.aio.AioRpcError) -> bool:
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # With this code our server says that it is busy. Its errors carry a code of their own, those of a proxy do not.
        return ERROR_CODE_KEY not in dict(error.trailing_metadata() or ())
    return error.code() is grpc.StatusCode.UNKNOWN and HTTP_TOO_LARGE in (error.details() or "")
