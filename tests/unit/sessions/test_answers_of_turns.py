"""Turns as messages: the plain parser, and vLLM's."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_models import a_chat_tokenizer
from support.chatting_agent import a_tool, user

from producers.sessions.messages import ParsedTurn, PlainParser, ToolCall, TurnParser, assistant_message
from producers.sessions.rendering import Conversation
from producers.sessions.text_tokens import TextTokens
from rollog.kernel.errors import ConfigError

tokens = TextTokens(a_chat_tokenizer())
with_tools = Conversation(messages=[user("hi")], tools=[a_tool()])
without_tools = Conversation(messages=[user("hi")])
call_text = '<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'


def parsed(
    text: str, conversation: Conversation = with_tools, parser: TurnParser | None = None
) -> ParsedTurn:
    return (parser or PlainParser(tokens)).parse(conversation, [1], tokens.ids(text))


def test_text_is_content_without_its_closing() -> None:
    assert parsed("well <b>\n<|im_end|>") == ParsedTurn(content="well <b>\n")


def test_tool_calls_are_read_from_tags() -> None:
    said = parsed(f"let me see\n{call_text}\n{call_text}<|im_end|>")
    assert said.content == "let me see"
    assert said.tool_calls == (ToolCall("add", '{"a":1,"b":2}'),) * 2


def test_tags_are_text_where_no_tools_are_offered() -> None:
    assert parsed(call_text, without_tools) == ParsedTurn(content=call_text)


@pytest.mark.parametrize(
    "inside", ["", "{", "[1]", '{"name": 1}', '{"name": "add", "arguments": 7}', "[" * 100_000]
)
def test_what_is_no_call_stays_text(inside: str) -> None:
    text = f"<tool_call>{inside}</tool_call>"
    assert parsed(text) == ParsedTurn(content=text)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhmm\n</think>\n\nyes", "hmm", "yes"),
        ("hmm\n</think>\n\nyes", "hmm", "yes"),
        ("<think>\nhmm", "hmm", ""),
        ("yes", "", "yes"),
    ],
)
def test_reasoning_stands_before_its_closing_tag(text: str, reasoning: str, content: str) -> None:
    assert parsed(text) == ParsedTurn(content=content, reasoning=reasoning)


def test_a_message_is_the_same_for_the_same_ids() -> None:
    said = ParsedTurn(content="", reasoning="r", tool_calls=(ToolCall("add", "{}"),))
    message = assistant_message(said, [1], [2])
    assert message == assistant_message(said, [1], [2])
    assert message["content"] is None
    assert message["reasoning_content"] == "r"
    other = assistant_message(said, [1, 2], [])
    assert other["tool_calls"][0]["id"] != message["tool_calls"][0]["id"]
    assert assistant_message(ParsedTurn(content=""), [1], [2]) == {"role": "assistant", "content": ""}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 314), min_size=1, max_size=30))
def test_any_ids_make_a_message(turn_ids: list[int]) -> None:
    said = PlainParser(tokens).parse(with_tools, [1], turn_ids)
    json.dumps(assistant_message(said, [1], turn_ids))


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch, as vLLM imports it
@pytest.mark.timeout(300)
def test_parsers_of_vllm_read_tool_calls_and_reasoning() -> None:
    pytest.importorskip("vllm")
    from producers.sessions.vllm_messages import VLLMParser  # noqa: PLC0415  # heavy

    hermes = VLLMParser(a_chat_tokenizer(), tokens, tool_parser="hermes")
    said = parsed(f"let me see\n{call_text}<|im_end|>", parser=hermes)
    assert said.content.strip() == "let me see"
    assert [(call.name, json.loads(call.arguments)) for call in said.tool_calls] == [
        ("add", {"a": 1, "b": 2})
    ]
    broken = "<tool_call>{</tool_call>"
    assert parsed(broken, parser=hermes) == ParsedTurn(content=broken)
    assert parsed("yes<|im_end|>", without_tools, hermes) == ParsedTurn(content="yes")
    with pytest.raises(ConfigError, match="'nobody'"):
        VLLMParser(a_chat_tokenizer(), tokens, tool_parser="nobody")
