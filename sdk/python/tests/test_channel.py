"""TLS with custom root certificates."""

import shutil
import subprocess
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fake_server import fake_server

from pitwheel import Client, Enqueued


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
