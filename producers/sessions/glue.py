"""What a chat template puts behind an answer: its closing, the new messages, and the generation prompt.

Nothing recorded is rendered again for it. New messages are rendered behind a stand-in for the answer, and what follows
the stand-in is the glue. That is right only where the template appends, which probes tell for each kind of new messages
(their roles), tools and arguments:

    the glue is the same behind a short and a long history        else it counts, or looks back
    each new message stands in the glue, once and in order         else it is moved to the front
    what stands before the answer is as it was without them        else tools or dates move
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from producers.sessions.conversations import Message, canonical_json
from producers.sessions.errors import BadRequest
from producers.sessions.text_tokens import answer_mark, head_mark, probe_mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from producers.sessions.chat_template import ChatTemplate
    from producers.sessions.text_tokens import TextTokens

_most_kinds = 1024
"""Kinds whose probes are remembered; agents choose tools and arguments, so there is no end of them."""

_probe_calls = [{"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": "{}"}}]
_short: list[Message] = [{"role": "user", "content": head_mark}]
_long: list[Message] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": head_mark},
]


@dataclass(frozen=True, slots=True)
class Glue:
    """Texts behind an answer: `closing` ends the answer, `text` is all that follows, the closing included."""

    closing: str
    text: str


@dataclass(frozen=True, slots=True)
class TemplateInputs:
    """What else than messages a template is given."""

    tools: Sequence[Mapping[str, Any]]
    arguments: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Equal for equal inputs."""
        return canonical_json([list(self.tools), dict(self.arguments)])


class GlueLearner:
    """Learns from probes whether a template appends, and renders what it appends."""

    def __init__(self, template: ChatTemplate, tokens: TextTokens) -> None:
        self._template = template
        self._tokens = tokens
        self._appends: dict[tuple[str, ...], bool] = {}

    def self_test(self) -> dict[str, bool]:
        """Whether the template appends each common kind of new messages, without tools."""
        kinds = {"user": ["user"], "tool": ["tool"], "tools": ["tool", "tool"], "system": ["system"]}
        inputs = TemplateInputs((), {})
        return {
            name: self.appends(roles, inputs, has_calls=roles[0] == "tool") for name, roles in kinds.items()
        }

    def glue(self, answer: Message, new: Sequence[Message], inputs: TemplateInputs) -> Glue | None:
        """What follows an answer when `new` messages come after it; None where the template does not append them.

        The text of `new` is hidden already.
        """
        calls = answer.get("tool_calls", [])
        if not self.appends([message["role"] for message in new], inputs, has_calls=bool(calls)):
            return None
        found = self._behind(_short, self._tokens.hide(calls), new, inputs)
        return None if found is None else found[1]

    def appends(self, roles: Sequence[str], inputs: TemplateInputs, *, has_calls: bool) -> bool:
        """Whether messages of these roles are appended to an answer, with tool calls or without."""
        key = (inputs.key, str(has_calls), *roles)
        if key not in self._appends:
            if len(self._appends) >= _most_kinds:
                self._appends.clear()
            self._appends[key] = self._probe(roles, inputs, has_calls=has_calls)
        return self._appends[key]

    def render(self, messages: Sequence[Message], inputs: TemplateInputs, *, prompt: bool = True) -> str:
        """Text of messages that are hidden already. Raises BadRequest."""
        return self._template.render(
            messages, self._tokens.hide(list(inputs.tools)), inputs.arguments, add_generation_prompt=prompt
        )

    def _probe(self, roles: Sequence[str], inputs: TemplateInputs, *, has_calls: bool) -> bool:
        calls = _probe_calls if has_calls else []
        new = [_probe_message(role, at) for at, role in enumerate(roles)]
        found = [self._behind(history, calls, new, inputs) for history in (_short, _long)]
        if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
            return False
        text = found[0][1].text
        places = [text.find(message["content"]) for message in new]
        if places != sorted(places) or -1 in places or text.count(probe_mark) != 2 * len(new):
            return False
        return all(
            self._is_head(head, history, inputs)
            for history, (head, _) in zip((_short, _long), (found[0], found[1]), strict=True)
        )

    def _is_head(self, head: str, history: Sequence[Message], inputs: TemplateInputs) -> bool:
        """Whether a history is rendered as if nothing came after it."""
        with suppress(BadRequest):
            alone, found, _ = self.render(history, inputs).partition(head_mark)
            return bool(found) and head.count(head_mark) == 1 and head.partition(head_mark)[0] == alone
        return False

    def _behind(
        self,
        history: Sequence[Message],
        calls: Sequence[Any],
        new: Sequence[Message],
        inputs: TemplateInputs,
    ) -> tuple[str, Glue] | None:
        """The text before the stand-in for an answer, and the glue behind it; None where there is no telling."""
        plain: Message = {"role": "assistant", "content": answer_mark}
        with suppress(BadRequest):
            bare = _around(self.render([*history, plain], inputs, prompt=False))
            for answer in [plain | {"tool_calls": list(calls)}, plain] if calls else [plain]:
                alone = _around(self.render([*history, answer], inputs, prompt=False))
                whole = _around(self.render([*history, answer, *new], inputs))
                if bare is None or alone is None or whole is None:
                    continue
                closing = bare[1]
                said = alone[1].removesuffix(closing)
                if alone[1].endswith(closing) and whole[1].startswith(said):
                    text = whole[1].removeprefix(said)
                    return whole[0], Glue(_common_beginning(closing, text), text)
        return None


def _probe_message(role: str, at: int) -> Message:
    message: Message = {"role": role, "content": f"{probe_mark}{at}{probe_mark}"}
    return message | ({"tool_call_id": "call00001", "name": "probe"} if role == "tool" else {})


def _around(text: str) -> tuple[str, str] | None:
    before, found, after = text.partition(answer_mark)
    return (before, after) if found and answer_mark not in after else None


def _common_beginning(left: str, right: str) -> str:
    at = next((at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other), None)
    return left[: min(len(left), len(right))] if at is None else left[:at]
