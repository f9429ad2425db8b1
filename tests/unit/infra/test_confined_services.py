"""Every service of every profile is confined, and a role can write what is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

infra = Path(__file__).parents[3] / "infra"
base = yaml.safe_load((infra / "docker-compose.yml").read_text())["services"]
secured = yaml.safe_load((infra / "docker-compose.secured.yml").read_text())["services"]
whole = [(name, service) for name, service in base.items()]
whole += [(name, service) for name, service in secured.items() if name not in base]
home = "/var/lib/rollog"


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Source and whether it is writable, by target."""
    found = {}
    for volume in service.get("volumes", []):
        if isinstance(volume, str):
            source, _, rest = volume.partition(":")
            target, _, mode = rest.partition(":")
            found[target or source] = (source if target else "", mode != "ro")
        else:
            subpath = volume.get("volume", {}).get("subpath", "")
            found[volume["target"]] = (f"{volume['source']}/{subpath}", not volume.get("read_only", False))
    return found


@pytest.mark.parametrize(("name", "service"), whole, ids=[name for name, _ in whole])
def test_a_service_has_a_read_only_root_no_capability_and_gains_none(
    name: str, service: dict[str, Any]
) -> None:
    assert service["read_only"] is True, name
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service.get("user", "1000").split(":")[0] != "0"


def test_a_worker_writes_large_samples_and_nothing_else_of_the_store() -> None:
    of_worker = mounts(base["rollout"])
    assert of_worker[f"{home}/weights"] == ("weights", False)
    assert of_worker[f"{home}/cache"] == ("cache", False)
    writable = {target: source for target, (source, is_writable) in of_worker.items() if is_writable}
    assert list(writable.values()) == ["weights/${ROLLOG_RUN:-demo}/payloads"]


def test_checkpoints_are_in_a_volume_that_the_trainer_alone_mounts() -> None:
    holders = [
        name
        for name, service in base.items()
        if "trainer" in {source for source, _ in mounts(service).values()}
    ]
    assert holders == ["trainer"]
    assert mounts(base["trainer"])[home] == ("trainer", True)


def test_only_the_trainer_and_who_makes_the_run_can_write_weights() -> None:
    writers = {
        name
        for name, service in base.items()
        if mounts(service).get(f"{home}/weights", ("", False)) == ("weights", True)
    }
    assert writers == {"folders", "topics", "trainer"}


def test_nothing_is_published_beyond_the_loopback_address() -> None:
    published = [port for _, service in whole for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_service_that_stays_has_a_health_check_but_for_the_watcher() -> None:
    one_shot = {"folders", "topics", "watch"}
    unwatched = {name for name, service in base.items() if "test" not in service.get("healthcheck", {})}
    assert unwatched == one_shot


def test_a_role_of_the_secured_profile_sees_its_own_secrets_alone() -> None:
    users = {
        "topics": "creator",
        "dispatcher": "dispatcher",
        "rollout": "rollout",
        "trainer": "trainer",
        "watch": "watch",
    }
    for name, user in users.items():
        assert mounts(secured[name]) == {"/etc/rollog/secrets": (f"secrets/{user}", False)}
        assert secured[name]["environment"]["ROLLOG_BROKER__SECURITY__USERNAME"] == user
    assert mounts(secured["kafka"]) == {"/etc/rollog/secrets": ("secrets/broker", False)}
    whole_volume = [
        name for name, service in secured.items() if ("secrets", True) in mounts(service).values()
    ]
    assert whole_volume == ["secrets"]


def test_no_service_of_the_secured_profile_has_a_secret_in_its_environment() -> None:
    for name, service in {**base, **secured}.items():
        for key, value in service.get("environment", {}).items():
            assert "PASSWORD" not in key or key.endswith("_FILE"), f"{name}: {key}={value}"


def test_whatever_files_are_combined_every_role_starts_the_image_that_is_built() -> None:
    gpu = yaml.safe_load((infra / "docker-compose.gpu.yml").read_text())["services"]
    for services in (base, base | secured, base | gpu, base | secured | gpu):
        images = {name: (gpu | secured | base).get(name, {}).get("image") for name in services}
        images |= {name: service["image"] for name, service in gpu.items() if "image" in service}
        ours = {name: image for name, image in images.items() if image and not image.startswith("${")}
        assert set(ours.values()) == {images["topics"]}, ours


def test_images_that_others_make_come_from_one_file() -> None:
    lines = [line for line in (infra / ".env").read_text().splitlines() if line and not line.startswith("#")]
    named = {line.partition("=")[0] for line in lines}
    used = {
        service["image"].removeprefix("${").partition(":")[0]
        for _, service in whole
        if service["image"] != "rollog"
    }
    assert used | {"PYTHON_IMAGE"} == named
    assert all(":latest" not in line for line in lines)
