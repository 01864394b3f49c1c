"""The connection to a server."""

from pathlib import Path
from typing import TypeAlias

import grpc
import grpc.aio

Tls: TypeAlias = bool | str | Path
Metadata: TypeAlias = tuple[tuple[str, str], ...]

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# Batches are cut at half of gRPC's default limit of 4 MiB, which a proxy may enforce.
BATCH_BYTES_MAX = 2 * 1024 * 1024
# The metadata in which an error of the server carries its code.
ERROR_CODE_KEY = "pitwheel-error"

_OPTIONS: tuple[tuple[str, int], ...] = (
    # Detects a dead connection within 15 seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The worker has its own backoff. The channel's default would wait up to two minutes. While the channel waits,
    # heartbeats fail without being sent, and after an outage the leases may have little left.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, this is the timeout of one connection attempt.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)


def open_channel(address: str, tls: Tls) -> grpc.aio.Channel:
    """Opens a channel. It belongs to the event loop that is running now."""
    if tls is False:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    roots = None if tls is True else Path(tls).read_bytes()
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(roots), options=_OPTIONS)


def status_text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def token_metadata(token: str | None) -> Metadata:
    return () if token is None else (("authorization", f"Bearer {token}"),)
