"""The Helm chart: it lints, its objects are valid for several clusters, and values that cannot work are refused."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from asynclane.server.settings import Settings

from .tools import CHART, DEPLOY, documents, needed, run

VALUES = sorted((CHART / "ci").glob("*.yaml"), key=lambda path: path.name)
# Kinds that operators bring; their definitions are not among Kubernetes' own.
CUSTOM = {
    "InferencePool": "inference.networking.k8s.io/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
}
# The oldest that the chart allows, and newer ones.
CLUSTERS = ("1.30", "1.33", "1.35")

Objects = dict[tuple[str, str], dict[str, Any]]


def template(helm: str, *flags: str) -> str:
    done = run([helm, "template", "asynclane", str(CHART), "--namespace", "ml", *flags])
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(helm: str, *flags: str) -> Objects:
    """Objects by kind and name."""
    return {(found["kind"], found["metadata"]["name"]): found for found in documents(template(helm, *flags))}


def values_of(name: str) -> list[str]:
    return ["--values", str(CHART / "ci" / f"{name}.values.yaml")]


def pod(objects: Objects, name: str = "asynclane") -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment", name]["spec"]["template"]["spec"]
    return spec


def variables(objects: Objects, name: str = "asynclane") -> dict[str, str]:
    return {one["name"]: one["value"] for one in pod(objects, name)["containers"][0]["env"]}


def validate(found: dict[str, Any], cluster: str) -> None:
    needed(find_spec("kubernetes_validate"), "kubernetes-validate is not installed")
    import_module("kubernetes_validate").validate(found, cluster, strict=True)


@pytest.mark.parametrize("values", [None, *VALUES], ids=lambda path: "default" if path is None else path.name)
def test_the_chart_lints_and_every_object_is_valid(helm: str, values: Path | None) -> None:
    flags = [] if values is None else ["--values", str(values)]
    linted = run([helm, "lint", "--strict", str(CHART), *flags])
    assert linted.returncode == 0, linted.stdout + linted.stderr
    objects = documents(template(helm, *flags))
    assert len(objects) >= 5
    for found in objects:
        if found["kind"] in CUSTOM:
            assert found["apiVersion"] == CUSTOM[found["kind"]]
            assert found["spec"]
        else:
            for cluster in CLUSTERS:
                validate(found, cluster)


def test_objects_that_are_applied_by_hand_are_valid() -> None:
    for found in documents((DEPLOY / "helm" / "download.yaml").read_text()):
        for cluster in CLUSTERS:
            validate(found, cluster)


def test_the_checker_finds_an_error(helm: str) -> None:
    deployment = rendered(helm)["Deployment", "asynclane"]
    deployment["spec"]["replica"] = 1
    with pytest.raises(Exception, match="replica"):
        validate(deployment, "1.35")


def test_the_pod_outlives_its_drain_and_is_probed_as_the_server_behaves(helm: str) -> None:
    """README.md: /ready says whether it takes work, /health whether its engine lives."""
    spec = pod(rendered(helm, "--set", "drainSeconds=120,preStopSeconds=7"))
    container = spec["containers"][0]
    assert variables(rendered(helm, "--set", "drainSeconds=120"))["ASYNCLANE_DRAIN_S"] == "120"
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}
    assert spec["terminationGracePeriodSeconds"] == 7 + 120 + 15
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/health", "readiness": "/ready", "liveness": "/health"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600


@pytest.mark.parametrize("values", [*VALUES], ids=lambda path: path.name)
def test_the_container_has_no_rights_and_writes_only_to_its_volumes(helm: str, values: Path) -> None:
    objects = rendered(helm, "--values", str(values))
    (name,) = (name for kind, name in objects if kind == "Deployment")
    spec = pod(objects, name)
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == 10001
    assert not spec["automountServiceAccountToken"]
    assert not spec["enableServiceLinks"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp", "/cache"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("values", [*VALUES], ids=lambda path: path.name)
def test_every_variable_is_a_setting(helm: str, values: Path) -> None:
    known = {field.name for field in dataclasses.fields(Settings)}
    objects = rendered(helm, "--values", str(values))
    (name,) = (name for kind, name in objects if kind == "Deployment")
    given = {one.removeprefix("ASYNCLANE_").lower() for one in variables(objects, name) if one.startswith("ASYNCLANE_")}
    assert given <= known
    assert "model" in given


def test_numbers_and_switches_reach_the_server_as_they_are_written(helm: str) -> None:
    given = variables(rendered(helm, *values_of("gpu")))
    assert given["ASYNCLANE_MAX_UNREAD_BYTES"] == "134217728"
    assert given["ASYNCLANE_DETERMINISTIC"] == "true"
    given = variables(rendered(helm, "--set-json", "settings.request_timeout_s=0.5,settings.decoder=null"))
    assert given["ASYNCLANE_REQUEST_TIMEOUT_S"] == "0.5"
    assert "ASYNCLANE_DECODER" not in given


def test_a_gpu_weights_and_keys_are_where_the_server_looks(helm: str) -> None:
    objects = rendered(helm, *values_of("gpu"))
    container, spec = pod(objects)["containers"][0], pod(objects)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert objects["PersistentVolumeClaim", "asynclane-weights"]["spec"]["resources"]["requests"]["storage"] == "40Gi"
    assert ("PersistentVolumeClaim", "asynclane-cache") in objects
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/models"]["readOnly"]
    keys = next(volume["secret"] for volume in spec["volumes"] if volume["name"] == "keys")
    assert keys["secretName"] == "clients"
    path = f"{mounts['/etc/asynclane']['mountPath']}/{keys['items'][0]['path']}"
    assert variables(objects)["ASYNCLANE_API_KEY_FILE"] == path


def test_ranks_of_tensor_parallelism_have_a_gpu_each_and_shared_memory(helm: str) -> None:
    spec = pod(rendered(helm, "--set", "settings.tensor_parallel_size=4,gpu.count=4"))
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    (volume,) = (one for one in spec["volumes"] if one["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]
    assert "shm" not in [one["name"] for one in pod(rendered(helm))["volumes"]]


def test_one_claim_serves_one_pod_that_is_replaced(helm: str) -> None:
    claim = ("--set", "weights.enabled=true")
    assert rendered(helm, *claim)
    assert rendered(helm, *claim, "--set-json", 'strategy={"type":"Recreate","rollingUpdate":null}')
    assert rendered(helm, *claim, "--set", "strategy.rollingUpdate.maxSurge=1,weights.existingClaim=shared")


def test_without_a_gpu_none_is_requested_and_keys_come_from_the_values(helm: str) -> None:
    objects = rendered(helm, *values_of("cpu"))
    assert "nvidia.com/gpu" not in pod(objects)["containers"][0]["resources"]["limits"]
    assert "tolerations" not in pod(objects)
    lines = objects["Secret", "asynclane-keys"]["stringData"]["api-keys"].splitlines()
    assert lines == ["alice:0123456789abcdef", "jobs:fedcba9876543210 weight=3 max_requests=8"]
    annotations = objects["Deployment", "asynclane"]["spec"]["template"]["metadata"]["annotations"]
    assert len(annotations["checksum/keys"]) == 64  # changed keys start new Pods


def test_the_rules_and_the_dashboard_are_those_of_the_other_files(helm: str) -> None:
    objects = rendered(helm, *values_of("gpu"))
    (rules,) = documents((DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert objects["PrometheusRule", "asynclane"]["spec"] == rules
    text = objects["ConfigMap", "asynclane-dashboard"]["data"]["asynclane.json"]
    assert text.strip() == (DEPLOY / "grafana" / "asynclane.json").read_text().strip()
    (endpoint,) = objects["ServiceMonitor", "asynclane"]["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")


def test_selectors_choose_the_pods(helm: str) -> None:
    for values in VALUES:
        objects = rendered(helm, "--values", str(values))
        (name,) = (name for kind, name in objects if kind == "Deployment")
        labels = objects["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        assert labels["llm-d.ai/engine-type"] == "asynclane"
        for (kind, _), found in objects.items():
            spec = found.get("spec", {})
            selector = spec.get("podSelector") or spec.get("selector")
            if selector:
                chosen = selector.get("matchLabels", selector)
                assert chosen.items() <= labels.items(), kind


def test_autoscalers_follow_waiting_requests_and_positions_in_flight(helm: str) -> None:
    objects = rendered(helm, *values_of("keda"))
    waiting, positions = (one["metadata"] for one in objects["ScaledObject", "asynclane"]["spec"]["triggers"])
    assert waiting["query"] == 'sum(asynclane_queue_depth{namespace="ml",service="asynclane"})'
    assert positions["query"] == 'sum(asynclane_positions_in_flight{namespace="ml",service="asynclane"})'
    assert (waiting["threshold"], positions["threshold"]) == ("4", "16384")
    assert "replicas" not in objects["Deployment", "asynclane"]["spec"]  # the autoscaler's, not each upgrade's
    objects = rendered(helm, *values_of("hpa"))
    metrics = [one["pods"] for one in objects["HorizontalPodAutoscaler", "asynclane"]["spec"]["metrics"]]
    assert [one["metric"]["name"] for one in metrics] == ["asynclane_queue_depth", "asynclane_positions_in_flight"]
    assert metrics[1]["target"]["averageValue"] == "8192"


def test_the_pool_chooses_pods_by_the_picker(helm: str) -> None:
    pool = rendered(helm, *values_of("gateway"))["InferencePool", "llada"]["spec"]
    assert pool["endpointPickerRef"] == {"name": "picker", "port": {"number": 9002}, "failureMode": "FailOpen"}
    assert pool["targetPorts"] == [{"number": 8000}]
    by_default = rendered(helm, "--set", "inferencePool.enabled=true")["InferencePool", "asynclane"]["spec"]
    assert by_default["endpointPickerRef"]["name"] == "asynclane-epp"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--set image.tags=x", "tags"),
        ("--set replicas=-1", "replicas"),
        ("--set gpu.count=one", "count"),
        ("--set settings.port=9000", "port"),
        ("--set settings.api_key=x", "api_key"),
        ("--set settings.Model=x", "Model"),
        ("--set apiKeys.entries[0]=nocolon", "entries"),
        ("--set apiKeys.entries[0]=10.0.0.5:secret", "entries"),
        ("--set autoscaling.kind=vpa", "kind"),
        ("--set weights.size=big", "size"),
        ("--set serviceMonitor.interval=15", "interval"),
        (
            "--set weights.enabled=true --set replicas=2",
            "weights.accessModes: more than one replica, or",
        ),
        ("--set compileCache.persistent=true --set autoscaling.kind=keda", "compileCache.accessModes"),
        ("--set weights.enabled=true --set strategy.rollingUpdate.maxSurge=1", "weights.accessModes: more than one"),
        ("--set compileCache.persistent=true --set strategy.rollingUpdate.maxSurge=25%", "compileCache.accessModes"),
        ("--set compileCache.persistent=true --set strategy.rollingUpdate=null", "compileCache.accessModes"),
        ("--set settings.tensor_parallel_size=4", "gpu.count is 1, but settings.tensor_parallel_size 4"),
        ("--set gpu.count=2", "gpu.count is 2, but settings.tensor_parallel_size 1"),
        ("--kube-version 1.29.0", "kubeVersion"),
    ],
)
def test_values_that_cannot_work_are_refused(helm: str, flags: str, message: str) -> None:
    done = run([helm, "template", "asynclane", str(CHART), *flags.split()])
    assert done.returncode != 0
    assert message in done.stderr


def test_a_chart_that_was_packed_holds_rules_and_dashboard(helm: str, tmp_path: Path) -> None:
    """They are links in the tree."""
    done = run([helm, "package", str(CHART), "--destination", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("*.tgz")
    flags = ["--set", "prometheusRule.enabled=true,dashboard.enabled=true"]
    done = run([helm, "template", "asynclane", str(packed), *flags])
    assert "AsynclaneGone" in done.stdout
    assert "asynclane.json" in done.stdout
