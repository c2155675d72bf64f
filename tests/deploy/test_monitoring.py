"""Alerts and the dashboard: each expression is evaluated by a Prometheus that scrapes a server, and has data."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ..support.processes import started
from ..support.servers import PARIS, Server, aborted, slow_body, wait_for
from .tools import DEPLOY, ROOT, documents, free_port, program, run

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "asynclane.json"
CASES = Path(__file__).with_name("alerts_test.yml")
# What Grafana puts in.
VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": "1m"}
PAGE = ROOT / "docs" / "operations.md"
METRIC = re.compile(r"\b(?:asynclane_|vllm:)[a-z0-9_]+\b")


def rules() -> list[dict[str, Any]]:
    (found,) = documents(ALERTS.read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] != "row":
            yield panel


def filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_the_rules_are_valid_and_their_names_are_unique() -> None:
    done = run([program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(ALERTS)])
    assert done.returncode == 0, done.stdout + done.stderr
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    assert {rule["labels"]["severity"] for rule in rules()} == {"critical", "warning", "info"}


def test_each_alert_fires_when_it_should_and_a_healthy_server_raises_none() -> None:
    done = run([program("promtool"), "test", "rules", str(CASES)])
    assert done.returncode == 0, done.stdout + done.stderr
    (cases,) = documents(CASES.read_text())
    tried = {one["alertname"] for case in cases["tests"] for one in case.get("alert_rule_test", [])}
    assert tried == {rule["alert"] for rule in rules()}


def test_the_configuration_of_compose_is_valid() -> None:
    done = run([program("promtool"), "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_laid_out_without_overlaps_and_each_panel_says_what_it_shows() -> None:
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (column, row)
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert rows == ["Now", "Load", "Latency", "Decoding", "Pages of keys and values", "Stalls", "Front ends"]
    for panel in panels():
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"  # whichever the reader has


def test_names_follow_prometheus_s_conventions_but_for_the_colon_of_vllm(server: Server) -> None:
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    done = run([program("promtool"), "check", "metrics"], input=text)
    complaints = (done.stdout + done.stderr).splitlines()
    assert [one for one in complaints if not re.fullmatch("vllm:.* metric names should not contain ':'", one)] == []
    assert complaints


class Prometheus:
    """A Prometheus that runs, over its API."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=10)

    def get(self, path: str, **given: str) -> Any:
        answer = self._http.get(f"/api/v1{path}", params=given).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        data = self.get("/query", query=expression)
        assert data["resultType"] == "vector", expression
        found: list[dict[str, Any]] = data["result"]
        return found

    def ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._http.close()


def give_work(url: str) -> None:
    """Answers of each outcome, refusals, and a client that leaves."""
    chat = {"model": "tiny-llada", "messages": [{"role": "user", "content": PARIS}]}
    bodies: list[Mapping[str, Any]] = [
        chat,
        {**chat, "seed": 1},
        {**chat, "max_tokens": 2},
        {**chat, "decoder": "llada", "max_tokens": 16},
        {**chat, "temperature": 9},
        {**chat, "timeout": 0.01, "decoder": "llada", "early_stop": False},
    ]
    with httpx.Client(base_url=url, timeout=60) as http:

        def post(body: Mapping[str, Any]) -> int:
            return http.post("/v1/chat/completions", json=body).status_code

        with ThreadPoolExecutor(len(bodies)) as pool:
            assert 200 in set(pool.map(post, bodies))
        with http.stream("POST", "/v1/chat/completions", json=slow_body(stream=True)) as left:
            next(left.iter_lines())
    wait_for(lambda: aborted(url) > 0)


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With the shipped rules and the configuration of Compose, which reads this server, and more often."""
    binary, folder = program("prometheus"), tmp_path_factory.mktemp("prometheus")
    (config,) = documents((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    with started(command):
        running = Prometheus(f"http://{address}")
        try:
            wait_for(running.ready)
            wait_for(lambda: bool(running.query("asynclane_engine_up == 1")))
            give_work(server.url)
            time.sleep(1)  # a scrape on each side of the work
            give_work(server.url)
            wait_for(lambda: bool(running.query("rate(asynclane_aborts_total[1m])")))
            yield running
        finally:
            running.close()


def test_every_expression_of_the_dashboard_has_data(prometheus: Prometheus) -> None:
    empty = []
    for panel in panels():
        for target in panel["targets"]:
            found = prometheus.query(filled(target["expr"]))
            if not found:
                empty.append(f"{panel['title']}: {target['expr']}")
    assert empty == []


def test_the_dashboard_s_numbers_are_those_of_the_server(prometheus: Prometheus, server: Server) -> None:
    shown = {panel["title"]: prometheus.query(filled(panel["targets"][0]["expr"])) for panel in panels()}
    assert float(shown["Servers up"][0]["value"][1]) == 1
    assert float(shown["Tokens a forward"][0]["value"][1]) > 0
    assert {one["metric"]["role"] for one in shown["Live lanes by role"]} == {"refine", "generate"}
    assert {"stop", "aborted"} <= {one["metric"]["outcome"] for one in shown["Answers by outcome"]}
    assert {"200", "400"} <= {one["metric"]["status"] for one in shown["Responses by status"]}


def test_the_dashboard_s_variables_and_annotations_have_values(prometheus: Prometheus) -> None:
    board = json.loads(DASHBOARD.read_text())
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
            assert found is not None
            metric, label = found.groups()
            assert prometheus.get(f"/label/{label}/values", **{"match[]": filled(metric)}), variable["name"]
    for annotation in board["annotations"]["list"]:
        prometheus.query(annotation["expr"])


def test_every_alert_is_evaluated_and_none_fires(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        groups = prometheus.get("/rules")["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["health"] != "unknown"]

    wait_for(lambda: len(evaluated()) == len(rules()))
    assert {rule["name"]: rule.get("lastError") for rule in evaluated() if rule["health"] != "ok"} == {}
    assert [rule["name"] for rule in evaluated() if rule["state"] == "firing"] == []


def test_every_alert_compares_something_that_the_server_reports(prometheus: Prometheus) -> None:
    """Without its limit, an alert's expression has data, unless it chooses responses that did not happen."""
    without = []
    for rule in rules():
        expression = re.sub(r'status(=~?)"[^"]*"', 'status=~".+"', rule["expr"])
        expression = re.sub(r"\s(?:[<>]|==)\s[\d.]+", " ", expression)
        if not prometheus.query(expression):
            without.append(rule["alert"])
    assert without == []


def test_every_metric_that_a_file_or_a_page_names_is_scraped(prometheus: Prometheus) -> None:
    scraped = set(prometheus.get("/label/__name__/values"))
    families = {re.sub("_(total|bucket|sum|count|created)$", "", name) for name in scraped}
    unknown = []
    pages = [PAGE, *sorted(DEPLOY.rglob("*"))]
    for path in pages:
        if path.is_file():
            with suppress(UnicodeDecodeError):
                names = set(METRIC.findall(path.read_text()))
                unknown += [f"{path.relative_to(ROOT)}: {name}" for name in names - scraped - families]
    assert unknown == []


def test_every_metric_is_explained(prometheus: Prometheus) -> None:
    page = set(re.findall(r"[a-z0-9_:]+", PAGE.read_text()))
    scraped = prometheus.get("/label/__name__/values", **{"match[]": '{job="asynclane"}'})
    missing = []
    for name in scraped:
        family = re.sub("_(bucket|sum|count|created)$", "", name)
        known = {name, family, f"{family}_total"} & page
        if not known and METRIC.fullmatch(name):
            missing.append(name)
    assert missing == []
