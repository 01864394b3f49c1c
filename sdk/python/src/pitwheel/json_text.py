"""Text of values and errors: compact JSON without NaN, and plain text without NUL, which Postgres can store."""

import json
from typing import Any


def to_json(value: Any) -> str:
    """Raises `TypeError` or `ValueError` if the value is not JSON."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate cannot be encoded in UTF-8. Raises here, where the traceback still shows the value's origin.
    text.encode()
    return text


def from_json(text: str, name: str) -> Any:
    """Raises `ValueError` for JSON that Python does not read, as an integer of 5,000 digits. The error names `name`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error_text(error)}") from error


def plain_text(text: str, chars_max: int) -> str:
    """The text cut to `chars_max` characters, without NUL and lone surrogates. Never raises."""
    return text[:chars_max].replace("\0", "").encode("utf-8", "replace").decode()


def error_text(error: BaseException) -> str:
    """`TypeName: text`, or only the type if there is no text. Never raises, even if `str(error)` does."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return name
    return f"{name}: {text}" if text else name
