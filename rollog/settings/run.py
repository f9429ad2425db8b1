"""Settings of a run as a whole: its name and length, broker, model, weights store, metrics, supervision."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from rollog.kernel.broker.clients import ClientName  # noqa: TC001  # pydantic resolves the annotations at run time
from rollog.kernel.broker.limits import smallest_record_limit_bytes
from rollog.settings.section import AMENDABLE, FIXED, PER_MACHINE, SECRET, WHICH_RUN, SecretPart, Section
from rollog.settings.security import SecurityConfig  # noqa: TC001 - pydantic reads it

run_name_pattern = r"^[a-z0-9-]{1,48}$"


class LastBatch(StrEnum):
    """What happens to the groups left when the dataset ends."""

    TRAIN = "train"
    DROP = "drop"


class RunConfig(Section):
    """The run as a whole."""

    name: Annotated[Annotated[str, Field(pattern=run_name_pattern)] | None, FIXED, WHICH_RUN] = None
    """Name of the run, `[a-z0-9-]{1,48}`, taken until `rollog runs delete` deletes it; made up when left out."""
    prefix: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,48}$"), FIXED, WHICH_RUN] = "rollog"
    """First part of every topic name."""
    seed: Annotated[int, Field(ge=0, lt=2**31), FIXED] = 0
    """Seed of dataset order, sampling and training."""
    num_steps: Annotated[int, Field(ge=1), AMENDABLE] = 60
    """Training steps after which the run ends (earlier if the dataset does). The learning rate falls until
    then: raising it while the run goes on lifts the rate of the next step."""
    last_batch: Annotated[LastBatch, FIXED] = LastBatch.TRAIN
    """Whether a batch smaller than `groups_per_batch` is trained when the dataset ends."""
    close_timeout_seconds: Annotated[float, Field(gt=0), FIXED] = 600.0
    """How long after its last step the trainer waits for the dispatcher's `Stopped` before it closes the ledger without
    it. Bounds the final evaluation and the end of the workers together: what takes longer is cut off."""


class BrokerConfig(Section):
    """The Kafka cluster and the topics of a run."""

    bootstrap_servers: Annotated[str | None, SECRET] = None
    """`host:port[,host:port]`; left out, `rollog up` starts the embedded Apache Kafka."""
    client: Annotated[ClientName, PER_MACHINE] = "auto"
    """Client library: `kafka-python`, `confluent` (confluent-kafka, of the extra `confluent`), or `auto`, which writes
    with confluent-kafka where it is installed and reads with kafka-python."""
    security: Annotated[SecurityConfig | None, SECRET] = None
    """How clients connect: TLS, certificates, users. Its keys are in [[broker.security]](#brokersecurity); left out, in
    plain text without a user."""
    samples_partitions: Annotated[int, Field(ge=1, le=4096), FIXED] = 4
    """Partitions of `samples` and `evaluations`."""
    max_workers: Annotated[int, Field(ge=1, le=4096), FIXED] = 16
    """Partitions of `tasks`: how many rollout workers can hold a grant at once."""
    replication_factor: Annotated[int, Field(ge=1), FIXED] = 1
    """Replicas of each topic; 3 with min ISR 2 to survive the loss of a machine."""
    min_insync_replicas: Annotated[int, Field(ge=1), FIXED] = 1
    """Replicas that must have a record before it is acknowledged."""
    connect_timeout_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 10.0
    """How long a client tries to reach the broker before it gives up, naming the address."""
    max_dead_letters_in_a_row: Annotated[int, Field(ge=1), PER_MACHINE] = 100
    """Unusable records of one topic, one after the other, that a role sets aside; one more ends it, because then the
    writer is at fault and not a record."""
    max_record_bytes: Annotated[int, Field(ge=smallest_record_limit_bytes), FIXED] = 16 << 20
    """Largest record of `samples`, in bytes; a larger sample ends as failed: too_large."""
    inline_sample_bytes: Annotated[int, Field(ge=0), FIXED] = 512 << 10
    """Bytes of arrays and text up to which a sample stands in its record; those of a larger one become an object of the
    weights store that the record names."""
    max_payload_bytes: Annotated[int, Field(ge=1, le=1 << 30), FIXED] = 64 << 20
    """Largest such object, in bytes; a larger sample ends as failed: too_large."""
    payload_wait_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 60.0
    """How long the trainer waits for such an object where the store answers without it; its sample is dead then."""
    framing: Annotated[Literal["single-object", "registry"], FIXED] = "single-object"
    """What stands before the body of each record: `single-object` is Avro's own, with the schema's fingerprint; with
    `registry` it is Confluent's, with the schema's id in the registry that `[registry]` names
    ([schema registry](schema-registry.md))."""


class ModelConfig(Section):
    """The policy."""

    path: Annotated[str | None, PER_MACHINE, SecretPart.USER_OF_ADDRESS] = None
    """Directory or Hugging Face name of a causal language model; left out, the demo's model is made."""
    tokenizer: Annotated[str | None, PER_MACHINE, SecretPart.USER_OF_ADDRESS] = None
    """Directory or name of the tokenizer, when it is not beside the model."""
    dtype: Annotated[Literal["float32", "bfloat16"], FIXED] = "float32"
    """Type of weights and activations in generation and training."""
    chat_template_kwargs: Annotated[dict[str, str | int | float | bool], FIXED] = Field(default_factory=dict)
    """Arguments for the chat template, as `tokenizer.apply_chat_template` takes them: `{enable_thinking = false}`."""
    max_context_tokens: Annotated[int, Field(ge=2), FIXED] = 2048
    """Longest prompt plus response."""


class WeightsConfig(Section):
    """Where published weights go."""

    uri: Annotated[str | None, PER_MACHINE, SecretPart.USER_OF_ADDRESS] = None
    """fsspec address of the weights store (`file://`, `s3://` ...); left out, a folder of the state directory."""
    wait_seconds: Annotated[float, Field(ge=0), PER_MACHINE] = 300.0
    """How long trainer and workers try again to publish or fetch a version while a store elsewhere does not answer."""
    patches: Annotated[Literal["auto", "off"], PER_MACHINE] = "auto"
    """The trainer stores most versions of a model in 16 bits as what changed since the one before, where that pays;
    `off` stores every version in full. Bits and digests are the same either way. With patches a trainer has two copies
    of a version of at most 1 GiB in host memory."""
    lane: Annotated[str, Field(pattern=r"^(auto|off|/.+)$"), PER_MACHINE] = "auto"
    """Where trainer and workers of one machine share memory. While a worker of the run lives on the trainer's machine,
    versions for a store elsewhere are written there, too, and workers look there first; the workers of a machine have
    one copy of the newest version together there, which patches take on. `auto`: /dev/shm, where there is one with
    room; a directory, by its whole path: there; `off`: nowhere. What is served is the same either way."""


class MetricsConfig(Section):
    """Prometheus metrics over HTTP."""

    port: Annotated[Annotated[int, Field(ge=0, le=65535)] | None, PER_MACHINE] = None
    """Port of the first role on this machine (0: any free one); left out, metrics are not served."""
    host: Annotated[str, PER_MACHINE] = "127.0.0.1"
    """Address to listen on."""


class SupervisionConfig(Section):
    """How `rollog up` treats a role, or its own broker, that dies."""

    max_restarts: Annotated[int, Field(ge=0), PER_MACHINE] = 5
    """Restarts within `window_seconds` after which a role is given up."""
    window_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 300.0
    """Restarts longer ago than this are forgiven."""
    first_delay_seconds: Annotated[float, Field(ge=0), PER_MACHINE] = 0.5
    """Pause before the first restart; each one within the window doubles it."""
    longest_delay_seconds: Annotated[float, Field(ge=0), PER_MACHINE] = 15.0
    """Longest pause before a restart."""


class PlacementConfig(Section):
    """Which GPUs of this machine `rollog up` gives to trainer and workers; counts only where there is one."""

    trainer: Annotated[tuple[int, ...], PER_MACHINE] = ()
    """Devices of the trainer's ranks, counted from 0 among those that CUDA shows; left out, the first ones."""
    workers: Annotated[tuple[tuple[int, ...], ...], PER_MACHINE] = ()
    """Devices of each worker; left out, those that the trainer leaves, as many for each as `tensor_parallel_size`,
    `pipeline_parallel_size` and `data_parallel_size` in `rollout.engine_args` make together."""
    share: Annotated[bool, PER_MACHINE] = False
    """Whether trainer and workers may share devices where there are too few; with a single device they always do."""
    trainer_memory_share: Annotated[float, Field(gt=0, lt=0.9), PER_MACHINE] = 0.5
    """Share of a device's memory that is left to the trainer where workers share the device with it."""
