"""TLS with custom root certificates, reconnects, and answers that are not of gRPC."""

import asyncio
import shutil
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fake_server import PROXY_413, fake_server

from pitwheel import Client, Enqueued, channel, heartbeat


@pytest.fixture
def key_and_certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = "-x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", "req", *options.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def a_server_is_trusted_by_its_root_certificate(key_and_certificate: tuple[Path, Path]) -> None:
    key, certificate = key_and_certificate
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])

    async with fake_server(credentials=credentials) as server:
        async with Client(server.address, tls=certificate) as client:
            assert await client.enqueue("greet") == Enqueued(1, True)
        async with Client(server.address, tls=True) as without_root:
            with pytest.raises(grpc.aio.AioRpcError):
                await without_root.enqueue("greet")


def a_channel_connects_as_often_as_a_heartbeat_is_repeated() -> None:
    options = dict(channel._OPTIONS)
    # gRPC varies it by a fifth.
    assert options["grpc.max_reconnect_backoff_ms"] <= 1000 * heartbeat.RETRY_SECONDS_MAX


async def _answer_413(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A proxy that speaks HTTP/2 only, and answers every request with status 413."""
    settings, headers, end_of_headers_and_stream = 4, 1, 5

    def send(kind: int, flags: int, stream: bytes, payload: bytes = b"") -> None:
        writer.write(len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream + payload)

    with closing(writer), suppress(asyncio.IncompleteReadError):
        await reader.readexactly(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        send(settings, 0, bytes(4))
        while True:
            frame = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(frame[:3], "big"))
            if frame[3] == headers:
                # 8 is the name `:status` in the table of HPACK.
                send(headers, end_of_headers_and_stream, frame[5:], b"\x08\x03413")


async def an_answer_413_of_a_proxy_arrives_as_the_fake_server_sends_it() -> None:
    proxy = await asyncio.start_server(_answer_413, "127.0.0.1", 0)
    host, port = proxy.sockets[0].getsockname()
    async with proxy, Client(f"{host}:{port}") as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.enqueue("greet")
    assert (refused.value.code(), refused.value.details()) == PROXY_413
