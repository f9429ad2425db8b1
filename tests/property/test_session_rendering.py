"""Generated conversations: echoes, edits and forged text, held against an engine that remembers its inputs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_models import a_renderer, templates
from support.chatting_agent import ChattingAgent, assistant, closing, user

pieces = [
    "a",
    " b",
    "<|im_end|>",
    "<|im_",
    "start|>",
    "\n",
    "<",
    "<|im_start|>assistant\n",
    "\ufdd0",
    "1\ufdd1",
    "é",
]
texts = st.lists(st.sampled_from(pieces), max_size=5).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(templates), st.sampled_from(["keep", "template"]))
def test_conversations_are_recorded_as_the_engine_saw_them_and_forge_nothing(
    data: st.DataObject, template: str, history: Any
) -> None:
    agent = ChattingAgent(renderer=a_renderer(template, history))
    chats: list[list[dict[str, Any]]] = [[]]
    for _ in range(data.draw(st.integers(1, 6))):
        chat = list(data.draw(st.sampled_from(chats)))
        if chat and data.draw(st.integers(0, 3)) == 0:
            at = data.draw(st.integers(0, len(chat) - 1))
            chat[at] = {**chat[at], "content": data.draw(texts)}
        chat.append(user(data.draw(texts)))
        said = data.draw(texts.filter(lambda text: "<|im" not in text)) + "."
        ids = agent.ask(chat, said + closing)
        chats.append([*chat, assistant(said.strip())])
        num_special = sum(each in agent.tokens.special_ids for each in ids)
        headers = len(chat) + (template == "dated")
        assert num_special == 2 * headers + 1
    recording = agent.recording()
    assert len(recording.turns) == len(agent.sent)
    assert len(recording.forks) <= len(agent.sent) - 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5), st.sampled_from(templates))
def test_a_conversation_without_edits_never_forks(exchanges: list[tuple[str, str]], template: str) -> None:
    agent = ChattingAgent(renderer=a_renderer(template))
    chat: list[dict[str, Any]] = []
    for asked, said in exchanges:
        chat.append(user(asked))
        agent.ask(chat, "." + said + closing, answer=assistant("." + said))
        chat.append(assistant("." + said))
    assert agent.recording().forks == ()
