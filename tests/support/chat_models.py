"""A small byte-level tokenizer with special tokens, and the chat templates of tests/data/templates."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.sessions.chat_template import TokenizerTemplate
from producers.sessions.live import Policy
from producers.sessions.messages import PlainParser
from producers.sessions.rendering import ConversationRenderer
from producers.sessions.text_tokens import TextTokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.sessions.rendering import History

templates = ("appends", "strips_reasoning", "dated", "moves_tools")
_directory = Path(__file__).parents[1] / "data" / "templates"
_corpus = [
    "the weather in Paris is fine today",
    "call a tool and tell the user what it said",
    '{"name": "add"}',
]


@cache
def a_chat_tokenizer(template: str = "appends") -> Any:
    """A tokenizer of bytes and some merges, so that neighbouring texts would merge if they were joined."""
    from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415  # heavy
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder  # noqa: PLC0415
    from tokenizers.models import BPE  # noqa: PLC0415
    from tokenizers.pre_tokenizers import ByteLevel  # noqa: PLC0415
    from tokenizers.trainers import BpeTrainer  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=330, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(_corpus, trainer)
    special = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    tokenizer.add_special_tokens(special)
    loaded = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    loaded.chat_template = (_directory / f"{template}.jinja").read_text(encoding="utf-8").rstrip("\n")
    return loaded


def a_renderer(
    template: str = "appends", history: History = "keep", defaults: Mapping[str, Any] | None = None
) -> ConversationRenderer:
    tokenizer = a_chat_tokenizer(template)
    shown = TokenizerTemplate(tokenizer, defaults=defaults)
    return ConversationRenderer(shown, TextTokens(tokenizer), history=history)


def a_policy(context_tokens: int = 4000) -> Policy:
    """The chat tokenizer's policy; also what an endpoint's process makes by its name."""
    tokenizer = a_chat_tokenizer()
    tokens = TextTokens(tokenizer)
    return Policy(
        renderer=a_renderer(),
        parser=PlainParser(tokens),
        tokens=tokens,
        vocabulary_size=len(tokenizer),
        context_tokens=context_tokens,
    )


def saved_chat_model(
    directory: Path, *, hidden_size: int, num_heads: int, max_position_embeddings: int
) -> Path:
    """A random model of the chat tokenizer, with it in one directory. vLLM wants heads of size 64 on a CPU."""
    import torch  # noqa: PLC0415  # heavy
    from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: PLC0415

    tokenizer = a_chat_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=1,
        num_attention_heads=num_heads,
        num_key_value_heads=1,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(directory)
    return directory
