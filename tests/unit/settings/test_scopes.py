"""Where each key may change, as it is declared, and what is derived from it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated

import pytest
from pydantic import Field

from rollog.settings.in_force import AmendableSections
from rollog.settings.scopes import (
    amendable_keys,
    belongs_to_the_run,
    declared_keys,
    engine_keys,
    is_local,
    local_keys,
    names_the_run,
    planning_keys,
    training_keys,
)
from rollog.settings.section import AMENDABLE, FIXED, SECRET, Scope, Section, scope_of
from rollog.settings.settings import Settings


def keys(section: str, names: str) -> frozenset[str]:
    return frozenset(f"{section}.{name}" for name in names.split())


algorithm = keys(
    "algorithm",
    "advantage aggregation clip_high clip_low discount dual_clip entropy_coefficient gae_lambda kl_coefficient "
    "kl_estimator kl_in kl_weight mask_level mask_ratio_high mask_ratio_low mask_truncated max_response_tokens "
    "negative_weight normalize_std overlong_penalty overlong_share positive_weight ratio_level type value_clip "
    "value_coefficient weight_high weight_low",
)
optimizer = keys(
    "optimizer",
    "betas epsilon final_fraction learning_rate max_gradient_norm warmup_steps weight_decay",
)
batch_plan = keys("trainer", "micro_batch_tokens num_epochs num_minibatches")
engine = keys(
    "trainer",
    "deepspeed engine gradient_dtype logprob_chunk_tokens lora_alpha lora_published lora_rank lora_targets "
    "offload_optimizer offload_parameters output_layer_dtype packed_attention packing reproducible zero_stage",
)


def test_these_keys_are_amendable_and_no_others() -> None:
    freshness = keys(
        "freshness",
        "alpha auto_headroom auto_max auto_max_divergence auto_min auto_min_effective_sample_size auto_start "
        "auto_step auto_wait_share barrier_every_steps",
    )
    trainer = keys(
        "trainer",
        "allow_rebase checkpoint_every_steps keep_checkpoints keep_every_weights keep_newest_weights "
        "verdicts_interval_seconds weights_grace_seconds",
    )
    assert amendable_keys == algorithm | optimizer | batch_plan | freshness | trainer | {"run.num_steps"}


def test_the_roles_of_a_run_may_differ_in_these_keys_and_no_others() -> None:
    assert local_keys == (
        keys(
            "agent",
            "host max_memory_bytes port public_host python read_only ssl_certfile ssl_keyfile variables",
        )
        | keys(
            "broker",
            "bootstrap_servers client connect_timeout_seconds max_dead_letters_in_a_row payload_wait_seconds security",
        )
        | keys("data", "held_out train")
        | keys("dispatch", "max_tasks_per_record")
        | keys(
            "environment",
            "episodes_per_process max_memory_bytes num_processes python reset_timeout_seconds step_timeout_seconds "
            "variables",
        )
        | keys("metrics", "host port")
        | keys("registry", "certificates credentials_file credentials_variable timeout_seconds url")
        | keys("reward", "environment max_in_flight max_memory_bytes")
        | keys("model", "path tokenizer")
        | keys(
            "rollout",
            "capacity engine engine_args first_load_tolerance gpu_memory_share heartbeat_seconds kv_cache_bytes "
            "load_attempts max_in_flight_bytes max_resumes num_threads reload server_address server_call_seconds "
            "server_certificates server_file server_load_seconds server_start_seconds server_variable",
        )
        | keys("placement", "share trainer trainer_memory_share workers")
        | keys("supervision", "first_delay_seconds longest_delay_seconds max_restarts window_seconds")
        | keys("trainer", "activation_checkpointing num_threads publish_beside_training rank_timeout_seconds")
        | keys("weights", "lane patches uri wait_seconds")
    )


def test_a_replay_may_ask_about_these_keys_and_no_others() -> None:
    assert training_keys == algorithm | optimizer | batch_plan | engine
    assert planning_keys == batch_plan | {"trainer.packing"}
    assert engine_keys == engine


def test_two_keys_say_which_run_is_meant() -> None:
    assert {key for key in declared_keys() if names_the_run(key.split("."))} == {"run.name", "run.prefix"}


def test_every_key_is_declared_with_one_scope() -> None:
    assert {scope_of(field) for field in declared_keys().values()} == set(Scope)


def test_a_section_with_a_key_without_a_scope_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"Careless\.size has 0 scopes"):

        class Careless(Section):
            size: Annotated[int, Field(ge=1)] = 1


def test_a_key_has_one_scope_only() -> None:
    with pytest.raises(TypeError, match=r"Torn\.size has 2 scopes"):

        class Torn(Section):
            size: Annotated[int, FIXED, AMENDABLE] = 1


def test_a_key_that_is_named_like_a_secret_is_one() -> None:
    class Careful(Section):
        api_key: Annotated[str | None, SECRET] = None

    assert scope_of(Careful.model_fields["api_key"]) is Scope.SECRET
    with pytest.raises(TypeError, match=r"Leaking\.api_key is named like a secret"):

        class Leaking(Section):
            api_key: Annotated[str | None, FIXED] = None


def test_what_is_secret_is_not_in_the_manifest() -> None:
    secret = [key for key, field in declared_keys().items() if scope_of(field) is Scope.SECRET]
    assert secret == [
        "broker.bootstrap_servers",
        "broker.security",
        "registry.url",
        "registry.credentials_variable",
        "registry.credentials_file",
    ]
    settings = Settings().changed(
        broker={"bootstrap_servers": "kafka:9092", "security": {"protocol": "SSL", "ca_file": "/ca.pem"}}
    )
    written = json.loads(settings.to_manifest())["broker"]
    assert [written["bootstrap_servers"], written["security"]] == [None, None]


@pytest.mark.parametrize(
    ("path", "is_local_here"),
    [
        (("rollout", "engine_args", "max_num_seqs"), True),
        (("rollout", "no_such_key"), True),
        (("trainer", "num_threads"), True),
        (("trainer", "no_such_key"), False),
        (("no_such_section", "key"), False),
    ],
)
def test_paths_below_and_beside_keys(path: tuple[str, ...], is_local_here: bool) -> None:
    assert is_local(path) is is_local_here
    assert belongs_to_the_run(path) is not is_local_here


def test_the_sections_in_force_are_those_with_amendable_keys() -> None:
    sections = {key.partition(".")[0] for key in amendable_keys}
    assert {field.name for field in fields(AmendableSections)} == sections
