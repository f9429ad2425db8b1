"""Configuration of agents: programs that ask the policy over HTTP, in place of one response to a prompt."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollog.settings.named_rewards import is_reference
from rollog.settings.section import FIXED, PER_MACHINE, Section

_host_name = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_Text = Annotated[str, Field(min_length=1)]


class AgentConfig(Section):
    """A program that is given a prompt of `data` and asks the policy as often as it likes: a function or a command."""

    function: Annotated[str | None, FIXED] = None
    """`module:function`, called as function(task, policy) in a process of its own ([agents](agents.md)); `async def` or
    not. Left out, and without `command`, rollouts are single responses or episodes."""
    command: Annotated[tuple[_Text, ...], FIXED] = ()
    """In place of `function`: a program and its arguments, run in a sandbox of its own; the word `{prompt}` stands for
    the prompt's text. Its standard output is its answer."""
    sandbox: Annotated[Literal["required", "none"], FIXED] = "required"
    """`none` runs the command without a sandbox, as the worker's user and with the network: for commands that are
    trusted with all that this user may do, whatever the policy makes them do."""
    read_only: Annotated[tuple[_Text, ...], PER_MACHINE] = ()
    """Directories that the sandbox shows besides /usr and its Python, for example that of the agent's packages."""
    python: Annotated[str | None, PER_MACHINE] = None
    """Interpreter that runs the function, for packages that need one of their own; left out, rollog's. Python 3.10 or
    later."""
    reward: Annotated[Literal["function", "agent"], FIXED] = "function"
    """Whose reward counts: that of section `reward`, which is given the agent's answer as response, or the one that the
    agent's function returns."""
    restore: Annotated[Literal["replay", "none"], FIXED] = "replay"
    """With `dispatch.durable_turns`, after a worker's death: `replay` runs the agent again and gives it the answers
    that it had, as long as it asks the same; `none` begins the session anew: for agents with effects outside."""
    max_turns: Annotated[int, Field(ge=1), FIXED] = 64
    """Most calls of a session. `sampling.max_tokens` bounds the answer to each, `model.max_context_tokens` each
    with its input."""
    max_tokens: Annotated[int, Field(ge=1), FIXED] = 8192
    """Most tokens that are sampled in a session, over all its calls."""
    max_forks: Annotated[int, Field(ge=0), FIXED] = 64
    """Most calls of a session that go on from somewhere else than the end of what was said; beyond it fails."""
    history: Annotated[Literal["keep", "template"], FIXED] = "keep"
    """What a later call shows of earlier turns: `keep` all that was said, `template` what the chat template would show
    now, for example without reasoning, which makes a fork."""
    parallel_calls: Annotated[int, Field(ge=1), FIXED] = 16
    """Calls that a session has under way at once; more are told to ask again."""
    timeout_seconds: Annotated[float, Field(gt=0), FIXED] = 300.0
    """An agent that takes longer is killed, and its sample fails."""
    idle_seconds: Annotated[Annotated[float, Field(gt=0)] | None, FIXED] = None
    """An agent that has no call under way and asks nothing for so long is killed, and its sample fails; left out, only
    `timeout_seconds` counts."""
    grace_seconds: Annotated[float, Field(ge=0), FIXED] = 5.0
    """What an agent may take to end after a call was refused because turns or tokens are used up. Then it is killed,
    and scored by what it has."""
    tool_parser: Annotated[str | None, FIXED] = None
    """vLLM's parser of tool calls for this model (`vllm serve --help` lists them); left out, JSON between `<tool_call>`
    tags."""
    reasoning_parser: Annotated[str | None, FIXED] = None
    """vLLM's parser of reasoning for this model; left out, text between `<think>` tags."""
    variables: Annotated[tuple[_Text, ...], PER_MACHINE] = ()
    """Names of environment variables that agents get from the worker's, besides those that the processes of rewards
    get. In a sandbox these are all."""
    max_memory_bytes: Annotated[int, Field(ge=64 << 20), PER_MACHINE] = 4 << 30
    """Private memory that a process of an agent may take (Linux: RLIMIT_DATA); in a sandbox all of them together."""

    host: Annotated[_Text, PER_MACHINE] = "127.0.0.1"
    """Where a worker's endpoint listens, an address of this machine. Any but loopback needs `ssl_certfile`: the keys of
    sessions travel there."""
    port: Annotated[int, Field(ge=0, le=65535), PER_MACHINE] = 0
    """Its port; 0 takes a free one, as several workers of one machine need it."""
    public_host: Annotated[_Text | None, PER_MACHINE] = None
    """Name or address under which agents reach it, as the certificate says it; left out, `host`."""
    ssl_certfile: Annotated[_Text | None, PER_MACHINE] = None
    """PEM file with the certificate and those of who signed it; the endpoint speaks HTTPS then. Agents have to trust
    it, for example by `SSL_CERT_FILE` among `variables`."""
    ssl_keyfile: Annotated[_Text | None, PER_MACHINE] = None
    """PEM file with the certificate's key, without a passphrase."""

    @property
    def is_given(self) -> bool:
        """Whether rollouts are sessions of an agent."""
        return self.function is not None or bool(self.command)

    @property
    def name(self) -> str:
        """The agent in one line."""
        return self.function or " ".join(self.command)

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if self.function is not None and self.command:
            raise ValueError(
                f"agent.function = {self.function!r} and agent.command = {list(self.command)} both say what the agent "
                "is; leave one out"
            )
        if self.function is not None and not is_reference(self.function):
            raise ValueError(
                f"agent.function = {self.function!r} names no function; give it as module:function"
            )
        if self.command and self.reward == "agent":
            raise ValueError(
                'agent.reward = "agent" needs agent.function: what a command prints is no reward, so name one in '
                'section reward and set it to "function"'
            )
        if self.command and self.python is not None:
            raise ValueError(
                f"agent.python = {self.python!r} runs a function; name the interpreter in agent.command instead"
            )
        if self.sandbox == "none" and not self.command:
            raise ValueError(
                'agent.sandbox = "none" is set and agent.command is not: a function has no sandbox'
            )
        return self

    @model_validator(mode="after")
    def _listens_safely(self) -> Self:
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("agent.ssl_certfile and agent.ssl_keyfile belong together; name both PEM files")
        if not is_loopback(self.host) and self.ssl_certfile is None:
            raise ValueError(
                f"agent.host = {self.host!r} is not loopback, where keys of sessions would be read by others; name "
                "agent.ssl_certfile and agent.ssl_keyfile"
            )
        if self.public_host is not None and not _host_name.fullmatch(self.public_host):
            raise ValueError(
                f"agent.public_host = {self.public_host!r} is no name and no address; give it without scheme and port"
            )
        if self.public_host is None and is_unspecified(self.host):
            raise ValueError(
                f"agent.host = {self.host!r} is every address of this machine; say under which name agents reach it "
                "as agent.public_host"
            )
        return self


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address; a name that is none counts as reached by others."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether it stands for every address of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
