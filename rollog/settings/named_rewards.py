"""Rewards that are named and not written: what each is called, its options, how much it counts.

Here stand names, options and their checks; `producers/rewards/library/` computes the values. To add a reward, declare
its class below, put it into `Component`, and give `producers/rewards/library/catalogue.py` what computes it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from rollog.kernel.addresses import public_address
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_identifier = r"[A-Za-z_]\w*"
_module_function = rf"{_identifier}(\.{_identifier})*:{_identifier}"
_function_tag = "module:function"

_from_list = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""`_known_and_complete` makes Python's values of JSON, and strictly a list is no tuple."""
_Text = Annotated[str, Field(min_length=1)]


class RewardComponent(BaseModel):
    """What every component has; further keys are options of the reward it names."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )
    waits: ClassVar[bool] = False
    """Whether it mostly waits, so that many of its calls run at once."""

    name: str
    """Name of a ready reward, or `module:function`."""
    weight: float = 1.0
    """The reward is the sum of the components' values, each times its weight."""
    label: _Text | None = None
    """Name of its value in the record; left out, `name`. Two components of one name need different ones."""

    @property
    def recorded_as(self) -> str:
        """Key of its value in the record."""
        return self.label or self.name

    @property
    def needs_time_limit(self) -> bool:
        """Whether some response makes it compute without end, so that it must run where it can be killed."""
        return False

    @model_validator(mode="before")
    @classmethod
    def _known_and_complete(cls, given: Any) -> Any:
        """Say which options there are, where one is misspelt or missing."""
        if not isinstance(given, Mapping):
            return given
        fields = cls.model_fields
        for key in given:
            if key not in fields:
                close = difflib.get_close_matches(str(key), fields, n=1)
                remedy = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(fields)}"
                raise ValueError(f"{key!r} is no option of the reward {given.get('name')!r}; {remedy}")
        missing = [key for key, field in fields.items() if field.is_required() and key not in given]
        if missing:
            raise ValueError(f"the reward {given.get('name')!r} needs the option {missing[0]!r}; add it")
        return given


class FunctionReward(RewardComponent):
    """A function of the user."""

    name: Annotated[str, Field(pattern=rf"^{_module_function}$")]
    """`module:function`, as in `reward.function`."""


class _AnswerReward(RewardComponent):
    """What compares an answer with the right one of the row."""

    field: _Text = "answer"
    """Field of the row with the right answer; a list holds several that are right."""
    after: _Text | None = None
    """Only what stands behind the last occurrence of this text is read, for example `</think>`; where it does not occur
    there is no answer."""


class MathReward(_AnswerReward):
    """1 where the answer is mathematically equal to the right one, by math-verify; else 0."""

    name: Literal["math"]
    """`math`"""
    where: Literal["anywhere", "marked", "boxed"] = "anywhere"
    r"""What counts as the answer: `boxed` the last \boxed{}; `marked` that, else what stands in the last `<answer>`, or
    follows the last `####` or "answer is"; `anywhere` these, else the last formula or number."""
    decimals: Annotated[int, Field(ge=0, le=15)] = 6
    """Decimals to which numbers are compared."""

    @property
    def needs_time_limit(self) -> bool:
        """Algebra may take any time."""
        return True


class ExactReward(_AnswerReward):
    """1 where the response is the right answer, character for character but for white space at the ends; else 0."""

    name: Literal["exact"]
    """`exact`"""
    ignore_case: bool = False
    """Whether capital and small letters are the same."""
    ignore_space: bool = False
    """Whether white space between words is the same, however much there is."""
    ignore_punctuation: bool = False
    """Whether punctuation is left out of both."""


class NumericReward(_AnswerReward):
    """1 where the last number of the response is the right one; else 0."""

    name: Literal["numeric"]
    """`numeric`"""
    tolerance: Annotated[float, Field(ge=0)] = 1e-6
    """Largest distance that is still right."""
    relative_tolerance: Annotated[float, Field(ge=0)] = 0.0
    """The same as a share of the right number; the larger one of both holds."""


class FormatReward(RewardComponent):
    """1 where the response has the wanted form; else 0. Give `pattern` or `tags`."""

    name: Literal["format"]
    """`format`"""
    pattern: _Text | None = None
    """Regular expression that is searched for; `.` matches line ends, `^` and `$` mean begin and end."""
    tags: Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Za-z][\w-]*$")], ...], _from_list] = ()
    """Tags that must each stand there once, closed, in this order: `["think", "answer"]`."""

    @property
    def needs_time_limit(self) -> bool:
        """A regular expression may backtrack for any time."""
        return self.pattern is not None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.pattern is None) == (not self.tags):
            raise ValueError("the reward 'format' needs either 'pattern' or 'tags'; give one of them")
        if len(set(self.tags)) < len(self.tags):
            raise ValueError(f"tags = {list(self.tags)} names a tag twice; name each once")
        if self.pattern is not None:
            _compiled("pattern", self.pattern)
        return self


class LengthReward(RewardComponent):
    """0 up to `target`, then linearly down to -1 at `limit` (overlong shaping: arXiv 2503.14476, equation 13)."""

    name: Literal["length"]
    """`length`"""
    target: Annotated[int, Field(ge=0)]
    """Length up to which nothing is taken off."""
    limit: Annotated[int, Field(ge=1)]
    """Length from which the value is -1; more than `target`."""
    unit: Literal["characters", "words", "tokens"] = "characters"
    """What is counted. Tokens are those of `tokenizer`, without special ones."""
    tokenizer: _Text | None = None
    """Directory or cached Hugging Face model with a tokenizer.json; for `unit = "tokens"`."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.limit <= self.target:
            raise ValueError(f"limit = {self.limit} is not above target = {self.target}; raise it")
        if (self.unit == "tokens") != (self.tokenizer is not None):
            raise ValueError(
                f"unit = {self.unit!r} with tokenizer = {self.tokenizer!r}: tokens, and only these, need a tokenizer"
            )
        return self


class JudgeReward(RewardComponent):
    """The number that a language model gives, asked over an OpenAI-compatible chat endpoint."""

    waits: ClassVar[bool] = True

    name: Literal["judge"]
    """`judge`"""
    address: Annotated[str, Field(pattern=r"^https?://[^\s]+$")]
    """Where `/chat/completions` is: `http://judge:8000/v1`."""
    model: _Text
    """Model that is asked."""
    template: Annotated[str, Field(min_length=1, max_length=16_000)]
    """What it is asked. {prompt}, {response} and {NAME OF A FIELD} are replaced; {{word}} stands for {word}."""
    system: _Text | None = None
    """System message before it."""
    variable: _Text | None = None
    """Environment variable that holds the API key; `reward.environment` must name it, too."""
    pattern: _Text = r"-?\d+(?:\.\d+)?"
    """Regular expression whose last match in the judge's answer is the number: its first group, where it has one."""
    bounds: Annotated[tuple[float, float], _from_list] | None = None
    """Least and largest value: a number beyond is cut to these."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Temperature of the judge."""
    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest answer of the judge."""
    attempts: Annotated[int, Field(ge=1, le=20)] = 4
    """Requests for one number; refused ones (429, 5xx) and late ones are repeated, with growing pauses."""
    request_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest time of one request. `reward.timeout_seconds` bounds all attempts together and must not be less."""

    @property
    def needs_time_limit(self) -> bool:
        """A regular expression may backtrack for any time; the default one does not."""
        return self.pattern != type(self).model_fields["pattern"].default  # type: ignore[no-any-return]

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if public_address(self.address) != self.address:
            raise ValueError(
                "the address holds a user, a password or a key; leave it out and name the key's environment "
                "variable as 'variable'"
            )
        if "{response}" not in self.template:
            raise ValueError("the template does not show the response; put {response} into it")
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"bounds = {list(self.bounds)}: the first must be below the second")
        _compiled("pattern", self.pattern)
        return self


class CodeReward(RewardComponent):
    """The share of the row's cases that the response's last code block passes, run in the sandbox."""

    name: Literal["code"]
    """`code`"""
    all_or_nothing: bool = False
    """Whether the value is 1 where all cases pass, and 0 else."""
    seconds_per_case: Annotated[float, Field(gt=0)] = 2.0
    """Longest wall time of one case; the last one gets what is left of `total_seconds`."""
    total_seconds: Annotated[float, Field(gt=0)] = 6.0
    """Cases that have not ended this long after the call began count as failed. `reward.timeout_seconds` must be 3 s
    more, in which a case that stops everything in its sandbox is ended; where several components are `code`, as much as
    all of them take together."""

    @property
    def needs_time_limit(self) -> bool:
        """Its calls block whatever loop they run on."""
        return True


def _compiled(key: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{key} = {pattern!r} is no regular expression: {error}; correct it") from error


_Named = MathReward | ExactReward | NumericReward | FormatReward | LengthReward | JudgeReward | CodeReward
"""A further named reward goes in here and into `Component`."""

named_rewards: Mapping[str, type[RewardComponent]] = {
    get_args(each.model_fields["name"].annotation)[0]: each for each in get_args(_Named)
}
"""The ready rewards by name."""


_known_names = ", ".join(sorted(named_rewards))


def _tag(value: Any) -> str:
    name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
    return _function_tag if isinstance(name, str) and ":" in name else str(name)


Component = Annotated[
    Annotated[MathReward, Tag("math")]
    | Annotated[ExactReward, Tag("exact")]
    | Annotated[NumericReward, Tag("numeric")]
    | Annotated[FormatReward, Tag("format")]
    | Annotated[LengthReward, Tag("length")]
    | Annotated[JudgeReward, Tag("judge")]
    | Annotated[CodeReward, Tag("code")]
    | Annotated[FunctionReward, Tag(_function_tag)],
    Discriminator(
        _tag,
        custom_error_type="unknown_reward",
        custom_error_message=f"its name is not known: give module:function, or one of {_known_names}",
    ),
]
"""One component of a reward, told apart by its name."""

_components: TypeAdapter[tuple[Component, ...]] = TypeAdapter(tuple[Component, ...])


def component_named(name: str) -> RewardComponent:
    """A ready reward with the options it has by itself. Raises ConfigError where it needs some, or is not known."""
    if name not in named_rewards:
        raise ConfigError(
            f"reward.function = {name!r} is not of the form module:function, for example my_rewards:exact_match, nor "
            f"the name of a ready reward: {_known_names}"
        )
    try:
        return named_rewards[name].model_validate({"name": name})
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"reward.function = {name!r}: {said}. Options stand in reward.components: "
            f'components = [{{ name = "{name}", ... }}] in place of function'
        ) from error


def is_reference(text: str) -> bool:
    """Whether the text is of the form `module:function`."""
    return re.fullmatch(_module_function, text) is not None


def components_as_text(components: Sequence[RewardComponent]) -> str:
    """Components as a process of rewards gets them."""
    return json.dumps([component.model_dump(mode="json") for component in components], ensure_ascii=False)


def components_from_text(text: str) -> tuple[RewardComponent, ...]:
    """The opposite."""
    return _components.validate_json(text)
