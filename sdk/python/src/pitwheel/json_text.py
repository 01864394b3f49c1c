"""JSON as it is stored: compact, without NaN, in characters that Postgres can hold."""

import json
from typing import Any


def to_json(value: Any) -> str:
    """Raises `TypeError` or `ValueError` for what is not JSON."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate is not UTF-8: it would fail later, where nobody can tell which value it was.
    text.encode()
    return text


def plain_text(text: str, chars_max: int) -> str:
    """For people to read: cut, and without what cannot be stored. Never raises."""
    return text[:chars_max].replace("\0", "").encode("utf-8", "replace").decode()
