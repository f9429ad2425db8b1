"""The Helm chart with every example of values: rendered by helm, valid for Kubernetes, within policy, and meant so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml
from support.helm_chart import (
    call,
    chart,
    environment,
    kubernetes_version,
    mounts,
    of_kind,
    pods,
    render,
    render_file,
    root,
    template,
    values_files,
)

from rollog.settings.settings import Settings
from rollog.settings.sources import Layers

if TYPE_CHECKING:
    from support.helm_chart import Manifest

here = ("--set", "broker.bootstrapServers=kafka:9092")
every_file = pytest.mark.parametrize("values", values_files, ids=lambda path: path.stem)

# Fields of the resources whose definitions are in no package: apiVersion, required fields, known fields of `spec`.
custom: dict[str, tuple[str, set[str], set[str]]] = {
    "ScaledObject": (
        "keda.sh/v1alpha1",
        {"scaleTargetRef", "triggers"},
        {
            "scaleTargetRef",
            "triggers",
            "minReplicaCount",
            "maxReplicaCount",
            "pollingInterval",
            "cooldownPeriod",
            "advanced",
        },
    ),
    "PodMonitor": (
        "monitoring.coreos.com/v1",
        {"selector", "podMetricsEndpoints"},
        {"selector", "podMetricsEndpoints", "podTargetLabels"},
    ),
    "PrometheusRule": ("monitoring.coreos.com/v1", {"groups"}, {"groups"}),
    "KafkaTopic": (
        "kafka.strimzi.io/v1beta2",
        {"partitions"},
        {"topicName", "partitions", "replicas", "config"},
    ),
    "KafkaUser": ("kafka.strimzi.io/v1beta2", {"authentication"}, {"authentication", "authorization"}),
}
# Checks of kube-score that do not fit here, each with its reason.
ignored = {
    "container-security-context-user-group-id": "the image's user is 1000, which owns the volumes of Compose too",
    "container-image-pull-policy": "a tag of rollog's never changes; a digest can be named",
}


@every_file
def test_every_manifest_is_valid(values: Path, tmp_path: Path) -> None:
    manifests = render_file(values, tmp_path)
    assert manifests
    for manifest in manifests:
        if manifest["kind"] in custom:
            api, required, known = custom[manifest["kind"]]
            assert manifest["apiVersion"] == api
            assert required <= set(manifest["spec"]) <= known
        else:
            kubernetes_validate.validate(manifest, kubernetes_version, strict=True)


@every_file
def test_every_pod_is_within_policy(values: Path, tmp_path: Path) -> None:
    manifests = [each for each in render_file(values, tmp_path) if each["kind"] not in custom]
    flags = [word for name in ignored for word in ("--ignore-test", name)]
    ended = call(
        "kube-score",
        "score",
        "--kubernetes-version",
        f"v{kubernetes_version}",
        "--output-format",
        "ci",
        *flags,
        "-",
        text=yaml.safe_dump_all(manifests),
    )
    assert ended.returncode == 0, ended.stdout
    assert "[CRITICAL]" not in ended.stdout
    assert "[OK]" in ended.stdout


def test_the_policy_check_finds_a_pod_that_may_write_its_root() -> None:
    manifests = render(*here)
    of_kind(manifests, "Deployment")["rollout"]["spec"]["template"]["spec"]["containers"][0][
        "securityContext"
    ]["readOnlyRootFilesystem"] = False
    ended = call("kube-score", "score", "--output-format", "ci", "-", text=yaml.safe_dump_all(manifests))
    assert ended.returncode != 0
    assert "writable root filesystem" in ended.stdout


@every_file
def test_every_pod_is_confined(values: Path, tmp_path: Path) -> None:
    for pod in pods(render_file(values, tmp_path)).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"] + pod.get("initContainers", []):
            confined = container["securityContext"]
            assert confined["readOnlyRootFilesystem"] is True
            assert confined["allowPrivilegeEscalation"] is False
            assert confined["capabilities"] == {"drop": ["ALL"]}
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])


@every_file
def test_secrets_are_named_and_never_written(values: Path, tmp_path: Path) -> None:
    manifests = render_file(values, tmp_path)
    assert not of_kind(manifests, "Secret")
    for pod in pods(manifests).values():
        for name, value in environment(pod).items():
            assert "PASSWORD" not in name or value.startswith("/etc/rollog/user/")


@every_file
def test_what_a_run_s_configuration_says_is_a_configuration(values: Path, tmp_path: Path) -> None:
    for manifest in of_kind(render_file(values, tmp_path), "ConfigMap").values():
        if "run.toml" in manifest["data"]:
            path = tmp_path / "run.toml"
            path.write_text(manifest["data"]["run.toml"])
            layers = Layers()
            layers.add_config(path)
            layers.check_values()


def test_a_worker_cannot_write_weights_or_checkpoints() -> None:
    manifests = render(*here)
    worker = pods(manifests)["rollout"]
    assert mounts(worker)["/var/lib/rollog/weights"]["readOnly"] is True
    assert mounts(worker)["/var/lib/rollog/cache"]["readOnly"] is True
    payloads = mounts(worker)["/var/lib/rollog/weights/demo/payloads"]
    assert payloads["subPath"] == "weights/demo/payloads"
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in worker["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"r-rollog-shared"}


def test_one_dispatcher_ends_before_the_next_begins() -> None:
    dispatcher = of_kind(render(*here), "Deployment")["dispatcher"]["spec"]
    assert (dispatcher["replicas"], dispatcher["strategy"]) == (1, {"type": "Recreate"})


def test_ranks_find_the_first_pod_by_its_name() -> None:
    values = ("--set", "trainer.pods=4,trainer.persistence.accessModes={ReadWriteMany}")
    manifests = render(*here, *values)
    trainer = of_kind(manifests, "StatefulSet")["trainer"]["spec"]
    service = of_kind(manifests, "Service")["trainer"]
    variables = environment(trainer["template"]["spec"])
    assert (trainer["replicas"], trainer["podManagementPolicy"]) == (4, "Parallel")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert trainer["serviceName"] == service["metadata"]["name"]
    assert variables["MASTER_ADDR"] == "r-rollog-trainer-0.r-rollog-trainer.runs.svc"
    assert (variables["WORLD_SIZE"], variables["RANK"]) == ("4", "$(NODE_RANK)")
    assert service["spec"]["selector"].items() <= trainer["template"]["metadata"]["labels"].items()


def test_several_ranks_in_each_pod_are_started_by_torchrun() -> None:
    pod = pods(render("-f", str(root / "infra/helm/values/ranks.yaml")))["trainer"]
    (container,) = pod["containers"]
    words = container["command"] + container["args"]
    assert "--nnodes=2" in words
    assert "--nproc-per-node=8" in words
    assert words[words.index("-m", words.index("--master-port=$(MASTER_PORT)")) :][:4] == [
        "-m",
        "--",
        "rollog.cli.main",
        "train",
    ]
    assert "RANK" not in environment(pod)
    assert "--shutdown-timeout=570" in words
    assert pod["terminationGracePeriodSeconds"] == 600
    assert environment(pod)["KEEP_RUNNING_STATUS"] == "/tmp/status"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_several_pods_need_a_volume_that_all_of_them_can_mount() -> None:
    ended = template(*here, "--set", "trainer.pods=2")
    assert ended.returncode != 0
    assert "several pods write their checkpoints into one folder" in ended.stderr


def test_workers_are_scaled_by_the_backlog_and_not_by_the_deployment() -> None:
    manifests = render("-f", str(root / "infra/helm/values/keda.yaml"))
    deployment = of_kind(manifests, "Deployment")["rollout"]
    (scaled,) = of_kind(manifests, "ScaledObject").values()
    (trigger,) = scaled["spec"]["triggers"]
    assert "replicas" not in deployment["spec"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    query = trigger["metadata"]["query"]
    assert "rollog_dispatcher_rollouts_open" in query
    assert "rollog_dispatcher_rollouts_waiting" in query
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_query_of_the_backlog_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    manifests = render("-f", str(root / "infra/helm/values/keda.yaml"))
    (scaled,) = of_kind(manifests, "ScaledObject").values()
    expressions = [scaled["spec"]["triggers"][0]["metadata"]["query"]]
    for path in (chart / "files" / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            expressions += [
                target["expr"].replace("$__rate_interval", "1m").replace("$run", ".*")
                for target in panel["targets"]
            ]
    records = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    ended = call("promtool", "check", "rules", "--lint=none", str(path))
    assert ended.returncode == 0, ended.stderr
    assert f"{len(expressions)} rules found" in ended.stdout


def test_alerts_are_the_same_in_compose_and_in_kubernetes() -> None:
    manifests = render("-f", str(root / "infra/helm/values/keda.yaml"))
    (rule,) = of_kind(manifests, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((chart / "files" / "rules.yml").read_text())
    assert call("promtool", "check", "rules", str(chart / "files" / "rules.yml")).returncode == 0


def test_alerts_come_when_they_should_and_only_then() -> None:
    ended = call("promtool", "test", "rules", str(Path(__file__).with_name("alerts.yml")))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_dashboards_arrive_as_they_are() -> None:
    manifests = render("-f", str(root / "infra/helm/values/keda.yaml"))
    arrived = of_kind(manifests, "ConfigMap")["dashboards"]["data"]
    kept = {
        f"rollog-{path.name}": json.loads(path.read_text())
        for path in (chart / "files/dashboards").glob("*.json")
    }
    assert {name: json.loads(text) for name, text in arrived.items()} == kept


def test_a_role_connects_as_its_own_user() -> None:
    manifests = render("-f", str(root / "infra/helm/values/secured.yaml"))
    names = {"dispatcher": "dispatcher", "rollout": "worker", "trainer": "trainer"}
    for role, name in names.items():
        variables = environment(pods(manifests)[role])
        assert variables["ROLLOG_BROKER__SECURITY__PROTOCOL"] == "SASL_SSL"
        assert json.loads(variables["ROLLOG_BROKER__SECURITY__USERNAME"]) == f"rollog-{name}"
        volumes = {volume["name"]: volume for volume in pods(manifests)[role]["volumes"]}
        assert volumes["broker-user"]["secret"]["secretName"] == f"kafka-{name}"


def test_every_variable_is_a_setting_of_rollog() -> None:
    for values in ("secured", "object-store", "keda"):
        for role, pod in pods(render("-f", str(root / f"infra/helm/values/{values}.yaml"))).items():
            given = {name: value for name, value in environment(pod).items() if name.startswith("ROLLOG_")}
            layers = Layers()
            layers.add_environment(given)
            layers.check_values()
            settings = Settings.model_validate(layers.values)
            assert settings.broker.bootstrap_servers, role


def test_users_of_strimzi_are_the_roles_of_this_release(tmp_path: Path) -> None:
    manifests = render_file(root / "infra/helm/values/strimzi.yaml", tmp_path)
    users = set(of_kind(manifests, "KafkaUser"))
    assert users == {"creator", "dispatcher", "rollout", "trainer"}
    for role, pod in pods(manifests).items():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["broker-user"]["secret"]["secretName"] == f"r-rollog-{role}"
        assert json.loads(environment(pod)["ROLLOG_BROKER__SECURITY__USERNAME"]) == f"r-rollog-{role}"


def test_network_policies_deny_everything_and_allow_what_each_role_needs() -> None:
    policies = of_kind(render("-f", str(root / "infra/helm/values/object-store.yaml")), "NetworkPolicy")
    assert policies["deny"]["spec"].keys() == {"podSelector", "policyTypes"}
    stores = {role: policy for role, policy in policies.items() if _ports(policy, "egress") >= {9000}}
    assert set(stores) == {"creator", "rollout", "trainer"}
    for role in ("creator", "dispatcher", "rollout", "trainer"):
        assert _ports(policies[role], "egress") >= {53, 9092}
    assert _ports(policies["rollout"], "ingress") == {"metrics"}
    assert "ingress" not in policies["creator"]["spec"]


def _ports(policy: Manifest, way: str) -> set[Any]:
    return {port["port"] for rule in policy["spec"].get(way, []) for port in rule.get("ports", [])}


def test_volumes_of_a_run_outlive_its_release() -> None:
    for claim in of_kind(render(*here), "PersistentVolumeClaim").values():
        assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_another_run_is_made_by_another_job() -> None:
    first, second = (
        set(of_kind(render(*here, "--set", f"run.name={name}"), "Job")) for name in ("first", "second")
    )
    assert first.isdisjoint(second)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("run.name=Not_A_Name", "run/name"),
        ("trainer.pods=0", "trainer/pods"),
        ("rollout.replica=3", "replica"),
        ("broker.security.protocol=TLS", "protocol"),
        ("broker.bootstrapServers=kafka", "bootstrapServers"),
        ("image.digest=sha256:abc", "digest"),
        ("keda.rolloutsPerWorker=0", "rolloutsPerWorker"),
        ("rollout.accelerators.nvidia\\.com/gpu=none", "accelerators"),
        ("monitoring.port=80", "port"),
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: str, named: str) -> None:
    ended = template(*here, "--set", wrong)
    assert ended.returncode != 0
    assert named in ended.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((), "broker.bootstrapServers: say where Kafka is"),
        ((*here, "--set", "keda.enabled=true"), "keda.prometheusAddress: say where Prometheus answers"),
        (
            (*here, "--set", "broker.security.protocol=SASL_SSL"),
            "name the Secret with the password of this role",
        ),
    ],
)
def test_what_lacks_is_asked_for(values: tuple[str, ...], said: str) -> None:
    ended = template(*values)
    assert ended.returncode != 0
    assert said in ended.stderr


def test_helm_finds_nothing_to_complain_of() -> None:
    ended = call("helm", "lint", "--strict", str(chart), "--kube-version", f"{kubernetes_version}.0", *here)
    assert ended.returncode == 0, ended.stdout
