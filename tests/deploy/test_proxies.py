"""The examples of proxies: through them, a stream's events come one by one, a client that leaves is noticed, a server
that drains loses no request, and `/metrics` is for operators only."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ..support.processes import started
from ..support.servers import PARIS, Server, aborted, gauge, slow_body, start_server, stop_server, wait_for
from .tools import DEPLOY, free_port, program, run

# Around the shipped file: what Debian's /etc/nginx/nginx.conf says, in a folder of the test's own.
MAIN = """
{user}
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/asynclane.conf;
}}
"""
CHAT = {"model": "tiny-llada", "messages": [{"role": "user", "content": PARIS}], "seed": 1}


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@dataclass(frozen=True, slots=True)
class Proxy:
    url: str
    trusted: ssl.SSLContext
    folder: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.trusted, timeout=60)

    def status(self, target: str) -> tuple[int, str]:
        """The status of a GET whose target is sent as it is written, and where it redirects to."""
        host = self.url.removeprefix("https://")
        with closing(http.client.HTTPSConnection(host, context=self.trusted, timeout=60)) as connection:
            connection.putrequest("GET", target, skip_host=True)
            connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.headers.get("location", "")

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False


def certificate(folder: Path) -> ssl.SSLContext:
    """Makes `tls.crt` and `tls.key`, and a context that trusts them."""
    made = run(
        f"{program('openssl')} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
        f" -addext subjectAltName=IP:127.0.0.1 -keyout {folder}/tls.key -out {folder}/tls.crt".split()
    )
    assert made.returncode == 0, made.stderr
    return ssl.create_default_context(cafile=folder / "tls.crt")


@contextmanager
def running_nginx(folder: Path, servers: str, deny: str = "deny all;") -> Iterator[Proxy]:
    """With the shipped file: only its addresses and the certificate are changed, or who may read `/metrics`."""
    binary, port, trusted = program("nginx"), free_port(), certificate(folder)
    changes = {
        "server 127.0.0.1:8000 max_fails=1 fail_timeout=10s;": servers,
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/nginx/tls/tls.crt": f"{folder}/tls.crt",
        "/etc/nginx/tls/tls.key": f"{folder}/tls.key",
        "allow 127.0.0.1;\n        deny all;": deny,
    }
    (folder / "asynclane.conf").write_text(replaced((DEPLOY / "nginx" / "asynclane.conf").read_text(), changes))
    # Started by root, its workers would be of a user that cannot read the folder.
    user = "user root;" if folder.owner() == "root" else ""
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
    command = [binary, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    checked = run([*command, "-t"])
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    running = Proxy(f"https://127.0.0.1:{port}", trusted, folder)
    with started(command) as process:
        try:
            wait_for(running.answers)
            yield running
        finally:
            process.terminate()  # a master that is killed leaves its workers
            process.wait(timeout=10)


@contextmanager
def running_envoy(folder: Path, servers: Sequence[Server]) -> Iterator[Proxy]:
    """With the shipped file: only its addresses and the certificate are changed."""
    binary, port, trusted = program("envoy"), free_port(), certificate(folder)
    (endpoint,) = re.findall(r"^ *- endpoint: .*\n", (DEPLOY / "envoy" / "envoy.yaml").read_text(), re.MULTILINE)
    there = "address: server, port_value: 8000"
    endpoints = (f"address: 127.0.0.1, port_value: {server.url.rpartition(':')[2]}" for server in servers)
    changes = {
        endpoint: "".join(endpoint.replace(there, here) for here in endpoints),
        "address: 0.0.0.0, port_value: 8443": f"address: 127.0.0.1, port_value: {port}",
        "address: 127.0.0.1, port_value: 9901": f"address: 127.0.0.1, port_value: {free_port()}",
        "/etc/envoy/tls/tls.crt": f"{folder}/tls.crt",
        "/etc/envoy/tls/tls.key": f"{folder}/tls.key",
    }
    path = folder / "envoy.yaml"
    path.write_text(replaced((DEPLOY / "envoy" / "envoy.yaml").read_text(), changes))
    running = Proxy(f"https://127.0.0.1:{port}", trusted, folder)
    command = [binary, "--config-path", str(path), "--use-dynamic-base-id", "--concurrency", "1"]
    with open(folder / "log", "w") as log, started([*command, "--log-level", "warning"], stderr=log) as process:
        try:
            wait_for(running.answers)
            yield running
        finally:
            process.terminate()
            process.wait(timeout=10)


@contextmanager
def draining_server() -> Iterator[Server]:
    """A server that has got SIGTERM and serves a long answer: new requests are HTTP 503."""
    server = start_server("--drain-s", "300", "--max-num-seqs", "1")
    try:
        with ThreadPoolExecutor(12) as pool:
            for _ in range(12):  # one after another
                pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=slow_body(), timeout=300)
            wait_for(lambda: gauge(server.url, "queue_depth") == 11)
            server.process.terminate()
            wait_for(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
            try:
                yield server
                assert httpx.get(f"{server.url}/ready").status_code == 503
            finally:
                server.process.kill()
    finally:
        stop_server(server)


def at(server: Server) -> str:
    return server.url.removeprefix("http://")


@pytest.fixture(scope="module")
def nginx(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A second server is down."""
    servers = f"server 127.0.0.1:{free_port()}; server {at(server)} max_fails=1 fail_timeout=10s;"
    with running_nginx(tmp_path_factory.mktemp("nginx"), servers, "allow 127.0.0.1; deny all;") as running:
        yield running


@pytest.fixture(scope="module")
def envoy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with running_envoy(tmp_path_factory.mktemp("envoy"), [server]) as running:
        yield running


@pytest.fixture(params=["nginx", "envoy"])
def proxy(request: pytest.FixtureRequest) -> Proxy:
    found: Proxy = request.getfixturevalue(request.param)
    return found


def test_an_answer_through_nginx_is_the_server_s(nginx: Proxy, server: Server) -> None:
    direct = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=60).json()
    with nginx.client() as http:
        for _ in range(4):  # the server that is down takes turns
            assert http.post("/v1/chat/completions", json=CHAT).json()["choices"] == direct["choices"]


def test_events_come_one_by_one(proxy: Proxy) -> None:
    """While the answer is being written: the first one in the first half of the time, and most of them alone."""
    reads: list[tuple[float, int]] = []
    with proxy.client() as http:
        begun = time.monotonic()
        with http.stream("POST", "/v1/chat/completions", json=slow_body(stream=True, max_tokens=96)) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            reads.extend((time.monotonic() - begun, piece.count(b"\n\n")) for piece in answer.iter_raw())
    events = sum(count for _, count in reads)
    assert events > 10
    assert len(reads) > events / 2
    assert reads[0][0] < reads[-1][0] / 2


def test_a_client_that_leaves_frees_its_pages(proxy: Proxy, server: Server) -> None:
    before = aborted(server.url)
    with (
        proxy.client() as http,
        http.stream("POST", "/v1/chat/completions", json=slow_body(stream=True)) as answer,
    ):
        next(answer.iter_lines())
    wait_for(lambda: aborted(server.url) == before + 1 and gauge(server.url, "kv_pages_used") == 0)


def test_the_server_sees_the_client_s_address_and_not_one_that_it_claims(proxy: Proxy, server: Server) -> None:
    path = f"/v1/models/through-{proxy.folder.name}"
    with proxy.client() as http:
        for claimed in ("203.0.113.7", "203.0.113.8, 203.0.113.9"):
            http.get(path, headers={"x-forwarded-for": claimed})
    wait_for(lambda: sum(path in line for line in server.log) == 2)
    lines = [line for line in server.log if path in line]
    assert not any("client=203." in line for line in lines), lines
    if (proxy.folder / "asynclane.conf").exists():  # Envoy takes another address of this machine for its loopback one
        assert all("client=127.0.0.1 " in line for line in lines), lines


def test_limits_are_the_server_s(nginx: Proxy) -> None:
    with nginx.client() as http:
        refused = http.post(
            "/v1/chat/completions", content=b" " * 3_000_000, headers={"content-type": "application/json"}
        )
        assert refused.status_code == 413
        assert refused.json()["error"]["message"]  # nginx's own page has none
        assert http.get("/metrics").status_code == 200  # from this machine


def test_nginx_complains_only_of_the_server_that_is_down_and_of_bodies_in_files(nginx: Proxy) -> None:
    lines = (nginx.folder / "error.log").read_text().splitlines()
    expected = ("Connection refused", "temporarily disabled", "is buffered to a temporary file")
    assert [line for line in lines if not any(text in line for text in expected)] == []


METRICS = (
    "/metrics",
    "/metrics/",
    "/metrics?x",
    "/metrics;x",
    "//metrics/",
    "/./metrics",
    "/%6detrics/",
    "/metrics%2f",
    "/%2fmetrics",
    "/v1/../metrics/",
    "/v1/%2e%2e/metrics",
    "/v1%2f..%2fmetrics",
)


def test_no_form_of_the_path_gets_a_client_to_the_metrics(server: Server, tmp_path: Path) -> None:
    servers = f"server {at(server)};"
    with running_nginx(tmp_path, servers, "deny all;") as proxy:
        found = {target: proxy.status(target)[0] for target in METRICS}
        # nginx reads an escape once, as the server does: this is no path of either.
        assert proxy.status("/%256detrics")[0] == 404
        assert proxy.status("/ready")[0] == 200
    assert found == dict.fromkeys(METRICS, 403)


def test_no_form_of_the_path_gets_past_envoy_to_the_metrics(envoy: Proxy) -> None:
    assert envoy.status("/ready")[0] == 200
    for target in METRICS:
        status, moved = envoy.status(target)
        if status == 307:  # a slash that was escaped
            status, _ = envoy.status(moved.removeprefix(envoy.url))
        assert status == 404, target


@pytest.mark.parametrize("kind", ["nginx", "envoy"])
def test_a_server_that_drains_loses_no_request(kind: str, server: Server, tmp_path: Path) -> None:
    """Even if the proxy goes on sending to it. Bodies are within a packet, a buffer, and neither."""
    with draining_server() as draining:
        servers = f"server {at(draining)} max_fails=0; server {at(server)} max_fails=0;"
        running = running_nginx(tmp_path, servers) if kind == "nginx" else running_envoy(tmp_path, [draining, server])
        with running as proxy, proxy.client() as client:
            for padding in (0, 2_000, 40_000, 300_000):
                content = json.dumps(CHAT) + " " * padding
                headers = {"content-type": "application/json"}
                found = [client.post("/v1/chat/completions", content=content, headers=headers) for _ in range(6)]
                assert [one.status_code for one in found] == [200] * 6, padding
        refused = [line for line in draining.log if "/v1/chat/completions status=503" in line]
        assert kind == "envoy" or len(refused) >= 8  # Envoy leaves it out as soon as it has seen /ready


def test_envoy_keeps_nothing_back_and_leaves_out_servers_that_drain() -> None:
    """The file says so, whether there is an Envoy to run or not."""
    config: Any = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())["static_resources"]
    (chain,) = config["listeners"][0]["filter_chains"]
    assert chain["transport_socket"]["name"] == "envoy.transport_sockets.tls"
    manager = chain["filters"][0]["typed_config"]
    assert [one["name"] for one in manager["http_filters"]] == ["envoy.filters.http.router"]
    hidden, rest = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert hidden == {"match": {"prefix": "/metrics"}, "direct_response": {"status": 404}}
    assert rest["route"]["timeout"] == "0s"  # by default 15 s for a whole stream
    assert manager["stream_idle_timeout"] == rest["route"]["idle_timeout"] == "3600s"
    (cluster,) = config["clusters"]
    assert cluster["name"] == rest["route"]["cluster"] == cluster["load_assignment"]["cluster_name"]
    assert cluster["health_checks"][0]["http_health_check"] == {"path": "/ready"}


def test_the_picker_reads_gauges_that_the_server_has(server: Server) -> None:
    values: Any = yaml.safe_load((DEPLOY / "gateway" / "endpoint-picker.values.yaml").read_text())
    extension = values["inferenceExtension"]
    config = yaml.safe_load(extension["pluginsCustomConfig"][extension["pluginsConfigFile"]])
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    metrics = httpx.get(f"{server.url}{plugins['metrics-data-source']['path']}").text
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    specs = [engine[name] for name in engine if name.endswith("Spec")]
    specs += [custom["metricSpec"] for custom in engine["customMetrics"]]
    assert len(specs) == 5
    for spec in specs:
        assert f"# TYPE {spec} gauge" in metrics
    (cache,) = re.findall(f"^{engine['cacheInfoSpec']}{{(.*)}} 1.0$", metrics, re.MULTILINE)
    assert re.findall(r'(?:^|,)(block_size|num_gpu_blocks)="\d+"', cache) == ["block_size", "num_gpu_blocks"]
    used = {one["pluginRef"] for one in config["schedulingProfiles"][0]["plugins"]}
    assert used <= set(plugins)
