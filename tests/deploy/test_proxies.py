"""The examples of proxies: through nginx, a stream's events come one by one, and a client that leaves is noticed."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ..support.processes import started
from ..support.servers import PARIS, Server, aborted, gauge, slow_body, wait_for
from .tools import DEPLOY, free_port, program, run

# Around the shipped file: what Debian's /etc/nginx/nginx.conf says, in a folder of the test's own.
MAIN = """
{user}
daemon off;
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
class Nginx:
    url: str
    trusted: ssl.SSLContext
    folder: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.trusted, timeout=60)


@pytest.fixture(scope="module")
def nginx(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """With the shipped file: only its addresses and the certificate are changed. A second server is down."""
    binary, folder, port = program("nginx"), tmp_path_factory.mktemp("nginx"), free_port()
    key, certificate = folder / "tls.key", folder / "tls.crt"
    made = run(
        f"{program('openssl')} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
        f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split()
    )
    assert made.returncode == 0, made.stderr
    changes = {
        "server 127.0.0.1:8000 ": f"server 127.0.0.1:{free_port()}; server {server.url.removeprefix('http://')} ",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/nginx/tls/tls.crt": str(certificate),
        "/etc/nginx/tls/tls.key": str(key),
    }
    (folder / "asynclane.conf").write_text(replaced((DEPLOY / "nginx" / "asynclane.conf").read_text(), changes))
    # Started by root, its workers would be of a user that cannot read the folder.
    user = "user root;" if folder.owner() == "root" else ""
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
    command = [binary, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    checked = run([*command, "-t"])
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    running = Nginx(f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=certificate), folder)

    def answers() -> bool:
        try:
            with running.client() as http:
                return http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    with started(command) as process:
        wait_for(answers)
        yield running
        process.terminate()  # a master that is killed leaves its workers
        process.wait(timeout=10)


def test_an_answer_through_nginx_is_the_server_s(nginx: Nginx, server: Server) -> None:
    direct = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=60).json()
    with nginx.client() as http:
        for _ in range(4):  # the server that is down takes turns
            assert http.post("/v1/chat/completions", json=CHAT).json()["choices"] == direct["choices"]


def test_events_come_one_by_one(nginx: Nginx) -> None:
    """While the answer is being written: the first one in the first half of the time, and most of them alone."""
    reads: list[tuple[float, int]] = []
    with nginx.client() as http:
        begun = time.monotonic()
        with http.stream("POST", "/v1/chat/completions", json=slow_body(stream=True, max_tokens=96)) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            reads.extend((time.monotonic() - begun, piece.count(b"\n\n")) for piece in answer.iter_raw())
    events = sum(count for _, count in reads)
    assert events > 10
    assert len(reads) > events / 2
    assert reads[0][0] < reads[-1][0] / 2


def test_a_client_that_leaves_nginx_frees_its_pages(nginx: Nginx, server: Server) -> None:
    before = aborted(server.url)
    with (
        nginx.client() as http,
        http.stream("POST", "/v1/chat/completions", json=slow_body(stream=True)) as answer,
    ):
        next(answer.iter_lines())
    wait_for(lambda: aborted(server.url) == before + 1 and gauge(server.url, "kv_pages_used") == 0)


def test_the_server_sees_the_client_s_address_and_not_one_that_it_claims(nginx: Nginx, server: Server) -> None:
    with nginx.client() as http:
        for claimed in ("192.0.2.7", "192.0.2.8, 192.0.2.9"):
            http.get("/v1/models/none", headers={"x-forwarded-for": claimed})
    wait_for(lambda: any("/v1/models/none" in line for line in server.log))
    lines = [line for line in server.log if "/v1/models/none" in line]
    assert all("client=127.0.0.1 " in line for line in lines), lines


def test_limits_are_the_server_s(nginx: Nginx) -> None:
    with nginx.client() as http:
        refused = http.post(
            "/v1/chat/completions", content=b" " * 3_000_000, headers={"content-type": "application/json"}
        )
        assert refused.status_code == 413
        assert refused.json()["error"]["message"]  # nginx's own page has none
        assert http.get("/metrics").status_code == 200  # from this machine


def test_nginx_complains_only_of_the_server_that_is_down(nginx: Nginx) -> None:
    lines = (nginx.folder / "error.log").read_text().splitlines()
    assert [line for line in lines if "Connection refused" not in line and "temporarily disabled" not in line] == []


def test_envoy_keeps_nothing_back_and_leaves_out_servers_that_drain() -> None:
    """There is no Envoy to run: what the file must say."""
    config: Any = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())["static_resources"]
    manager = config["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert [one["name"] for one in manager["http_filters"]] == ["envoy.filters.http.router"]
    hidden, rest = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert hidden == {"match": {"path": "/metrics"}, "direct_response": {"status": 404}}
    assert rest["route"]["timeout"] == "0s"  # by default 15 s for a whole stream
    assert manager["stream_idle_timeout"] == rest["route"]["idle_timeout"] == "3600s"
    (cluster,) = config["clusters"]
    assert cluster["name"] == rest["route"]["cluster"] == cluster["load_assignment"]["cluster_name"]
    assert cluster["health_checks"][0]["http_health_check"] == {"path": "/ready"}
    for typed in [manager, *manager["http_filters"], cluster["typed_extension_protocol_options"]]:
        assert "type.googleapis.com/envoy.extensions." in str(typed)


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
