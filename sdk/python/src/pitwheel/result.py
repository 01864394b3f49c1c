"""The result of a job: a JSON value that is stored when the job completes."""

from typing import Any

from .json_text import error_text, to_json

# The server refuses larger results.
RESULT_BYTES_MAX = 256 * 1024


def result_to_json(value: Any) -> str:
    """Raises `ValueError` if the value is not JSON or is too large."""
    try:
        result = to_json(value)
    except Exception as error:
        raise ValueError(f"the result is not JSON: {error_text(error)}") from error
    # A character has at most four bytes in UTF-8, so short results need not be encoded to be measured.
    if len(result) * 4 > RESULT_BYTES_MAX and (size := len(result.encode())) > RESULT_BYTES_MAX:
        raise ValueError(
            f"the result has {size} bytes, the limit is {RESULT_BYTES_MAX}: store it elsewhere and return a reference"
        )
    return result
