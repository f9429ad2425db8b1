"""The errors of rollog.

    RollogError
    ├── ConfigError            a setting is unknown, ill-typed or contradicts another
    │   ├── SandboxRefused     a wall of the sandbox does not hold on this machine, or it cannot start here
    │   └── RegistryRefused    the schema registry refuses a schema, the credentials or the question
    ├── DataError              the dataset, the model or the reward function cannot be used
    ├── BrokerError            Kafka said no, or nothing
    │   ├── BrokerUnreachable  no broker answered within the bound
    │   │   └── RegistryUnreachable    nor did the schema registry, or with nothing that can be used
    │   ├── BrokerRefused      a broker answers and does not take these settings: asking again does not help
    │   ├── BrokerTimeout      the outcome of a send or a commit is unknown: exit and recover
    │   ├── ProducerFenced     the broker takes nothing more from this producer: replaced, or too slow
    │   ├── RecordTooLarge     a record is over the topic's or the client's limit
    │   ├── NotAuthorized      an ACL is missing: it is granted, or the role cannot work
    │   ├── TopicMismatch      a topic is missing or differs from what the run needs
    │   └── ArchiveError       an archive is damaged, altered, or asked for what only a live broker does
    ├── DecodeError            bytes are not a record of ours
    ├── DiskFull               a disk that is written to has no room left
    ├── WeightsError           weights are missing, or their bytes do not match their sha256
    │   ├── VersionPruned      the run let the version's files go, by its rule
    │   └── WeightsStoreSilent the store does not answer: nothing can be said of any file
    ├── PayloadError           the object of a large sample cannot be used
    │   ├── PayloadMissing     the store answers and does not have it
    │   ├── PayloadAltered     its bytes are not those that the record names
    │   └── PayloadStoreSilent the store does not answer: nothing can be said of any object
    ├── LedgerError            the ledger's chain is broken or contradicts itself
    ├── EngineError            the inference or training engine failed
    │   ├── EngineDied         the engine's process ended: its worker leaves and is started again
    │   │   └── EndpointDied   so did the process that serves its agents, again and again
    │   └── EngineNotStarted   the engine could not start: it is tried once more
    │       └── LogprobsOff    it has started, and computes other log-probabilities than the trainer
    ├── RewardError            one reward could not be computed: its sample fails
    ├── EnvironmentFailed      an environment raised, broke its port, or lost its process: its episode fails
    │   ├── EnvironmentProcessEnded    its process is gone
    │   └── EnvironmentTimedOut    one of its calls took too long
    ├── AgentFailed            an agent raised, or lost its process: its session fails
    │   ├── AgentTimedOut      it took too long, and was killed
    │   └── AgentIdle          it had no call under way for too long, and was killed
    ├── SandboxError           a sandbox ended, or did not do what only it could do
    ├── RunExists              a run name is taken
    ├── RunNotFound            no manifest of that name
    ├── Superseded             a newer dispatcher or trainer owns the run: never restart
    ├── Expired                suspended, or without a broker, for too long: start it again
    └── ChildFailed            a supervised process gave up

Every message names the value, the place and the remedy.
"""

from __future__ import annotations

exit_status_fenced = 78
"""Exit status of a role that was superseded; no supervisor restarts it."""

exit_status_expired = 75
"""Exit status of a role that is whole but was suspended, or had no broker, for too long: it is started again."""

exit_status_configuration = 2
"""Exit status of a role that cannot work with its settings, data or rights; no supervisor restarts it."""

exit_status_engine = 3
"""Exit status of a worker whose engine could not start, or computes other log-probabilities than the trainer.

A second time in a row, no supervisor restarts it.
"""


class RollogError(Exception):
    """Base of everything rollog raises on purpose."""


class ConfigError(RollogError):
    """A setting is unknown, ill-typed or contradicts another."""


class SandboxRefused(ConfigError):
    """A wall of the sandbox does not hold on this machine, or the sandbox cannot start here."""


class RegistryRefused(ConfigError):
    """The schema registry refuses a schema, the credentials or the question; asking again changes nothing."""


class DataError(RollogError):
    """The dataset, the model or the reward function cannot be used."""


class BrokerError(RollogError):
    """Kafka refused a request or did not answer."""


class BrokerUnreachable(BrokerError):
    """No broker answered within the bound."""


class RegistryUnreachable(BrokerUnreachable):
    """The schema registry did not answer within the bound, or with nothing that can be used: ask again later."""


class BrokerRefused(BrokerError):
    """A broker answers, and it or this client does not take who the other is: a certificate, a user, a protocol."""


class BrokerTimeout(BrokerError):
    """The outcome of a send or a commit is unknown; the caller exits and recovers."""


class ProducerFenced(BrokerError):
    """The broker takes nothing more from this producer.

    Another process took over its transactional id, or a transaction stayed open for too long: Kafka does not say which.
    `rollog.rules.epochs` tells them apart for dispatcher and trainer.
    """


class RecordTooLarge(BrokerError):
    """A record is over the topic's or the client's limit."""


class NotAuthorized(BrokerError):
    """The cluster does not let this client do something: an ACL is missing, or forbids it."""


class TopicMismatch(BrokerError):
    """A topic is missing or differs from what the run needs."""


class ArchiveError(BrokerError):
    """An archive of a run is damaged or altered, or was asked for what only a live broker does."""


class DecodeError(RollogError):
    """Bytes are not a record of ours."""


class DiskFull(RollogError):
    """A disk that is written to has no room left: make room, then start what ended again."""


class WeightsError(RollogError):
    """Files of a version are missing, or their bytes do not match its sha256."""


class VersionPruned(WeightsError):
    """The files of a version were let go by the rule of its run: they are not lost."""


class WeightsStoreSilent(WeightsError):
    """The store does not answer now: nothing can be said of any file."""


class PayloadError(RollogError):
    """The object that holds the arrays of a large sample cannot be used."""


class PayloadMissing(PayloadError):
    """The store answers and does not have the object."""


class PayloadAltered(PayloadError):
    """The object's bytes are not those that the record of its sample names."""


class PayloadStoreSilent(PayloadError):
    """The store does not answer, or is not there: nothing can be said of any object."""


class LedgerError(RollogError):
    """The ledger's chain is broken or contradicts itself."""


class EngineError(RollogError):
    """The inference or training engine failed."""


class EngineDied(EngineError):
    """The engine's process ended; nothing it held can be recovered."""


class EndpointDied(EngineDied):
    """The process that serves the policy to agents ends whenever it is started."""


class EngineNotStarted(EngineError):
    """The inference engine could not start with this model on this device."""


class LogprobsOff(EngineNotStarted):
    """The inference engine computes other log-probabilities than the trainer: its tokens would be another model's."""


class RewardError(RollogError):
    """One reward could not be computed: the function raised, hung, or returned no finite number."""


class EnvironmentFailed(RollogError):
    """An environment raised, gave what its port does not allow, or lost its process: its episode has failed."""


class EnvironmentProcessEnded(EnvironmentFailed):
    """The process of an environment has ended, by itself or by somebody else: its episodes fail."""


class EnvironmentTimedOut(EnvironmentFailed):
    """A call of an environment took longer than its time-out."""


class AgentFailed(RollogError):
    """An agent raised, ended with an error, or lost its process: its session has failed."""


class AgentTimedOut(AgentFailed):
    """An agent took longer than its time-out, and was killed."""


class AgentIdle(AgentFailed):
    """An agent had no call under way for too long, and was killed."""


class SandboxError(RollogError):
    """A sandbox ended, or a file in it could not be read or written."""


class RunExists(RollogError):
    """A run name is taken until `rollog runs delete` deletes its run."""


class RunNotFound(RollogError):
    """There is no manifest of that name."""


class Superseded(RollogError):
    """A newer dispatcher or trainer owns the run."""


class Expired(RollogError):
    """A role was suspended, or its broker did not answer, for too long; nobody took its place. Start it again."""


class ChildFailed(RollogError):
    """A supervised process gave up."""


def exit_status(error: BaseException) -> int:
    """The status with which a command ends on `error`."""
    if isinstance(error, Superseded):
        return exit_status_fenced
    if isinstance(error, Expired):
        return exit_status_expired
    if isinstance(error, EngineNotStarted):
        return exit_status_engine
    if isinstance(error, ConfigError | DataError | BrokerRefused | NotAuthorized):
        return exit_status_configuration
    return 1
