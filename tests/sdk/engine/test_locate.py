"""The choice of the engine, and the message for a user without one."""

import contextlib
import json
import socket
import ssl
import subprocess

import pytest

from herringbone.engine.locate import EngineEndpoint, TlsFiles, endpoints, explain, find_engine
from herringbone_contract.errors import EngineError, UnsupportedError


def addresses(environ, home):
    return [endpoint.address for endpoint in endpoints(environ, home)]


def write_context(folder, name, host, *, skip_verification=True):
    """Write a context of the docker command, and return the folder for its certificates."""
    import hashlib

    identifier = hashlib.sha256(name.encode()).hexdigest()
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))
    metadata = folder / "contexts" / "meta" / identifier / "meta.json"
    metadata.parent.mkdir(parents=True)
    endpoint = {"Host": host, "SkipTLSVerify": skip_verification}
    metadata.write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    return folder / "contexts" / "tls" / identifier / "docker"


def test_an_engine_that_the_user_names_is_the_only_one(tmp_path):
    environ = {"DOCKER_HOST": "tcp://gpu:2375", "DOCKER_CONTEXT": "desktop", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert list(endpoints(environ, tmp_path)) == [EngineEndpoint("DOCKER_HOST", "tcp://gpu:2375")]


def test_by_default_the_usual_sockets_are_tried(tmp_path):
    assert addresses({"XDG_RUNTIME_DIR": "/run/user/7"}, tmp_path) == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/7/docker.sock",
        f"unix://{tmp_path}/.docker/run/docker.sock",
    ]


def test_the_default_context_changes_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "default"}))
    assert len(addresses({"DOCKER_CONFIG": str(tmp_path)}, tmp_path)) == 2


def test_a_context_names_the_engine(tmp_path):
    write_context(tmp_path, "gpu", "ssh://me@gpu")
    candidates = list(endpoints({"DOCKER_CONFIG": str(tmp_path)}, tmp_path))
    assert candidates == [EngineEndpoint("context 'gpu' of the docker command", "ssh://me@gpu")]


def test_a_context_with_certificates_is_behind_tls(tmp_path):
    certificates = write_context(tmp_path, "gpu", "tcp://gpu:2376", skip_verification=False)
    certificates.mkdir(parents=True)
    environ = {"DOCKER_CONFIG": str(tmp_path)}
    (endpoint,) = endpoints(environ, tmp_path)
    assert endpoint.tls == TlsFiles(certificates, verify=True)
    with pytest.raises(UnsupportedError, match=r"tcp://gpu:2376 is behind TLS.*DOCKER_HOST=ssh://user@host"):
        find_engine(environ, tmp_path)


def test_a_missing_context_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "desktop-of-old"}))
    with pytest.raises(EngineError, match="context 'desktop-of-old' does not exist"):
        addresses({"DOCKER_CONFIG": str(tmp_path)}, tmp_path)


def test_without_an_engine_the_message_lists_what_was_tried_and_the_remedy(tmp_path):
    with pytest.raises(EngineError) as raised:
        find_engine({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}, tmp_path)
    assert str(raised.value).splitlines()[:2] == [
        "no container engine answers. Tried:",
        f"  DOCKER_HOST: unix://{tmp_path}/none.sock: not there",
    ]
    assert "systemctl start docker" in str(raised.value)


def test_a_closed_port_is_reported(unused_port, tmp_path):
    with pytest.raises(EngineError, match=f"tcp://127.0.0.1:{unused_port}: connection refused"):
        find_engine({"DOCKER_HOST": f"tcp://127.0.0.1:{unused_port}"}, tmp_path)


def test_a_socket_without_permission_has_its_own_remedy():
    message = explain([("the system's socket: unix:///var/run/docker.sock", PermissionError(13, "Permission denied"))])
    assert (
        "docker.sock: permission denied\nThe engine runs, but you may not use it: `sudo usermod -aG docker" in message
    )


def test_a_socket_without_a_listener_is_refused(tmp_path):
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        with pytest.raises(EngineError, match="connection refused"):
            find_engine({"DOCKER_HOST": f"unix://{path}"}, tmp_path)


@pytest.fixture
def unused_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def certificates(tmp_path):
    """A folder with certificates for a server on 127.0.0.1 and for its client, signed by themselves."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=engine"]
    command += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        tmp_path / "key.pem",
        "-out",
        tmp_path / "cert.pem",
    ]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    return tmp_path


@pytest.mark.parametrize("verify", ["1", ""])
def test_an_engine_behind_tls_serves_images(certificates, verify):
    """The engine asks for the client's certificate, as dockerd does with --tlsverify."""
    import threading

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(listener):
        for _ in range(2):  # find_engine's own connection, and the request
            connection, _ = listener.accept()
            # The client ends the first connection without a request; newer versions of OpenSSL report that.
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                if secured.recv(1 << 16):
                    secured.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"ApiVersion": "1.41"}')

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        environ = {"DOCKER_HOST": address, "DOCKER_CERT_PATH": str(certificates), "DOCKER_TLS_VERIFY": verify}
        engine = find_engine(environ, certificates, tls=True)
        assert engine.get("/version") == {"ApiVersion": "1.41"}
        thread.join()


@pytest.mark.docker
def test_the_engine_of_this_machine(own_engine):
    assert own_engine.get("/version")["ApiVersion"]


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:x", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1", "tcp://[::1]:²"]
)
def test_an_address_without_a_port_is_named(tmp_path, address):
    with pytest.raises(EngineError, match="is no port; write tcp://HOST:PORT"):
        find_engine({"DOCKER_HOST": address}, tmp_path)
