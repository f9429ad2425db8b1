"""`math`: answers that are equal in another form, answers that only look near, and answers that never end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from producers.rewards.choice import make_rewards
from producers.rewards.functions import RewardResult, call_reward_function
from producers.rewards.library.catalogue import function_of
from rollog.kernel.errors import RewardError
from rollog.settings.generation import RewardConfig
from rollog.settings.named_rewards import MathReward

if TYPE_CHECKING:
    from pathlib import Path

right = [
    # fractions and decimals
    ("1/2", r"\boxed{\frac{1}{2}}"),
    ("1/2", "The answer is 0.5."),
    (r"\frac{1}{2}", r"\boxed{\dfrac12}"),
    (r"\frac12", r"\boxed{\frac{2}{4}}"),
    ("0.5", r"\boxed{.5}"),
    ("0.5", r"\boxed{½}"),
    ("1/3", r"\boxed{0.333333333}"),
    (r"3\frac{1}{2}", r"\boxed{\frac{7}{2}}"),
    ("7/2", r"\boxed{3.5}"),
    (r"\frac{3}{4}", r"\boxed{\frac 34}"),
    ("42", r"\boxed{42.0}"),
    ("42", r"\boxed{042}"),
    # percent
    (r"50\%", r"\boxed{50\%}"),
    ("50%", r"\boxed{0.5}"),
    ("50", r"\boxed{50\%}"),
    (r"\frac{3}{4}", r"\boxed{75\%}"),
    # currency, thousands, units, degrees
    ("12", r"\boxed{\$12}"),
    (r"\$12", r"The answer is \$12."),
    ("12", "The cost is $12"),
    ("1234", r"\boxed{1,234}"),
    ("1,234.5", r"\boxed{1234.50}"),
    ("5", r"\boxed{5 \text{ cm}}"),
    (r"5 \text{ cm}", r"\boxed{5}"),
    ("5", r"\boxed{5\,\mathrm{m}}"),
    ("90", r"\boxed{90^\circ}"),
    (r"90^\circ", r"\boxed{90°}"),
    # powers and scientific notation
    ("1000000", r"\boxed{10^6}"),
    ("300000000", r"\boxed{3 \times 10^8}"),
    ("300000000", r"\boxed{3e8}"),
    (r"3 \times 10^{8}", "3e8"),
    ("0.0012", r"\boxed{1.2 \cdot 10^{-3}}"),
    ("2^{10}", r"\boxed{1024}"),
    ("4^{1012}", r"\boxed{2^{2024}}"),
    ("120", r"\boxed{5!}"),
    # sets, tuples, intervals, matrices
    (r"\{1,2,3\}", r"\boxed{\{3, 2, 1\}}"),
    (r"\{1,2\}", r"\boxed{1, 2}"),
    ("1,2", r"\boxed{2, 1}"),
    ("2 or 3", "The answer is $2$ or $3$"),
    (r"\pm 3", r"\boxed{\{-3, 3\}}"),
    ("(1,2)", r"\boxed{(1, 2)}"),
    ("(1,2,3)", r"\boxed{\left(1, 2, 3\right)}"),
    ("[0,1)", r"\boxed{[0, 1)}"),
    ("[0,1)", r"\boxed{x \in [0,1)}"),
    (r"(-\infty, 2) \cup (3, \infty)", r"\boxed{(-∞, 2) ∪ (3, ∞)}"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\boxed{\begin{pmatrix} 1 & 2 \end{pmatrix}}"),
    # surds, constants, algebra
    (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"),
    (r"2\sqrt{2}", r"\boxed{2*sqrt(2)}"),
    (r"\sqrt{2}", r"\boxed{√2}"),
    (r"\frac{1}{\sqrt{2}}", r"\boxed{\frac{\sqrt{2}}{2}}"),
    (r"2\pi", r"\boxed{2π}"),
    (r"2\pi", r"\boxed{2*pi}"),
    (r"\log_2 8", r"\boxed{3}"),
    ("3+4i", r"\boxed{4i + 3}"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    ("x^2", r"\boxed{x²}"),
    ("x^2", r"\boxed{x**2}"),
    ("5", r"\boxed{x = 5}"),
    ("x=5", r"\boxed{5}"),
    (r"x \le 3", r"\boxed{3 \ge x}"),
    ("-3", r"\boxed{−3}"),
    # words and choices
    ("A", r"\boxed{\text{A}}"),
    ("A", r"\boxed{(A)}"),
    ("Tuesday", r"\boxed{\text{tuesday}}"),
    ("Yes", "The answer is yes."),
    # where the answer stands
    ("42", "42"),
    ("42", "#### 42"),
    ("42", "so we get 42"),
    ("42", "<answer> 42 </answer>"),
    ("42", "**Answer:** 42"),
    ("42", "The final answer is: $42$. I hope it is correct."),
    ("42", "The final answer is\n$$\n42\n$$"),
    ("5", r"\boxed 5"),
    (r"11\sqrt{2}", r"\fbox{11\sqrt{2}}"),
    ("8", r"\boxed{7} \boxed{8}"),
    ("3", r"first \boxed{3}, then \boxed{16"),
    ("72", "She sold 48/2 = 24 clips.\nShe sold 48+24 = 72 clips.\n#### 72"),
    ("She sold 24 + 48 = 72.\n#### 72", r"\boxed{72}"),
    # other types of field
    (42, r"\boxed{42}"),
    (0.25, r"\boxed{\frac{1}{4}}"),
    (["7", "8"], r"\boxed{8}"),
]

wrong = [
    ("1/3", r"\boxed{0.33}"),
    ("1/3", r"\boxed{3}"),
    ("42", r"\boxed{-42}"),
    ("42", r"\boxed{43}"),
    ("42", r"\boxed{4.2}"),
    ("42", r"\boxed{420}"),
    ("42", r"\boxed{41} or \boxed{43}"),
    ("42", "I do not know"),
    ("42", ""),
    ("7", r"\boxed{7} \boxed{8}"),
    (r"\{7, 8\}", r"\boxed{7} \boxed{8}"),
    ("3e8", r"\boxed{3e7}"),
    (r"\{1,2,3\}", r"\boxed{\{1,2\}}"),
    ("(1,2)", r"\boxed{(2, 1)}"),
    ("[0,1)", r"\boxed{[0, 1]}"),
    ("[0,1)", r"\boxed{(0, 1)}"),
    (r"\sqrt{8}", r"\boxed{2\sqrt{3}}"),
    (r"\sqrt{2}", r"\boxed{1.4}"),
    (r"2\pi", r"\boxed{6.28}"),
    ("x^2+2x+1", r"\boxed{(x-1)^2}"),
    ("x=5", r"\boxed{x=6}"),
    (r"x \le 3", r"\boxed{x < 3}"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\boxed{\begin{pmatrix} 2 & 1 \end{pmatrix}}"),
    ("A", r"\boxed{B}"),
    ("Yes", "The answer is no."),
    ("blue", r"\boxed{lube}"),
    (["7", "8"], r"\boxed{9}"),
]

hostile = {
    "a tower of powers": r"\boxed{10**10**10}",
    "a tower in braces": r"\boxed{10^{10^{10}}}",
    "a huge exponent": r"\boxed{2^{99999999999}}",
    "a huge negative exponent": r"\boxed{2^{-99999999999}}",
    "a huge exponent of ten": r"\boxed{1e999999999}",
    "a huge factorial": r"\boxed{100000000!}",
    "factorials of factorials": r"\boxed{9!!!!}",
    "deep brackets": r"\boxed{" + "(" * 900 + "1" + ")" * 900 + "}",
    "deep fractions": r"\boxed{" + r"\frac{1}{" * 150 + "2" + "}" * 150 + "}",
    "a megabyte of digits": "1" * 1_000_000,
    "a megabyte of digits in a box": r"\boxed{" + "1" * 1_000_000 + "}",
    "a megabyte of open boxes": r"\boxed{" * 150_000,
    "a megabyte of dollars": "$" * 1_000_000,
    "a megabyte of marks": "answer is " * 100_000,
    "unbalanced braces": r"\boxed{{{{{",
    "a fraction without its end": r"\boxed{\frac{1}{2}",
    "braces the wrong way": "}" * 1000 + "{" * 1000,
    "digits of another script": r"\boxed{٤٢}",
    "digits in circles": r"\boxed{④②}",
    "a zero byte": "\\boxed{4\x002}",
    "half a surrogate pair": "\\boxed{4\ud8002}",
    "an unknown command": r"\boxed{\foo{42}\bar}",
}


def scored(answer: Any, response: str, **options: Any) -> RewardResult:
    function = function_of(MathReward(name="math", **options))
    return call_reward_function(function, "a prompt", response, {"answer": answer})


@pytest.mark.parametrize(("answer", "response"), right)
def test_an_equal_answer_is_right(answer: Any, response: str) -> None:
    assert scored(answer, response).reward == 1.0


@pytest.mark.parametrize(("answer", "response"), wrong)
def test_an_answer_that_only_looks_near_is_wrong(answer: Any, response: str) -> None:
    assert scored(answer, response).reward == 0.0


@pytest.mark.parametrize("attack", hostile)
def test_a_hostile_answer_is_wrong_without_being_computed(attack: str) -> None:
    assert scored("43", hostile[attack]).reward == 0.0


def test_code_in_an_answer_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "made"
    code = f"__import__('pathlib').Path('{file}').touch()"

    for response in (rf"\boxed{{{code}}}", f"The answer is {code}", f"$${code}$$", code):
        assert scored("43", response).reward == 0.0

    assert not file.exists()


def test_an_answer_that_is_computed_without_end_fails_its_own_sample_only() -> None:
    responses = [r"\boxed{(x+y+z+w)^{900}}", r"\boxed{42}"]
    rewards = make_rewards("math", RewardConfig(function="math", timeout_seconds=4.0))

    async def run() -> list[Any]:
        await rewards.start()
        try:
            calls = [rewards.score("p", response, {"answer": 42}) for response in responses]
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        finally:
            await rewards.close()

    failure, answered = asyncio.run(run())

    assert isinstance(failure, RewardError)
    assert "took longer than 4 s" in str(failure)
    assert answered == RewardResult(reward=1.0, components={"answered": 1.0})


@pytest.mark.parametrize(
    ("where", "response", "reward"),
    [
        ("boxed", r"\boxed{42}", 1.0),
        ("boxed", "The answer is 42", 0.0),
        ("marked", "The answer is 42", 1.0),
        ("marked", r"so $x = 42$", 0.0),
        ("anywhere", r"so $x = 42$", 1.0),
    ],
)
def test_only_an_answer_at_the_wanted_place_counts(where: str, response: str, reward: float) -> None:
    result = scored("42", response, where=where)

    assert result == RewardResult(reward=reward, components={"answered": reward})


def test_what_stands_before_the_end_of_thinking_is_not_read() -> None:
    assert scored("42", r"\boxed{42}</think> It is 43", after="</think>").reward == 0.0
    assert scored("42", "It is 43</think> It is 42", after="</think>").reward == 1.0
    assert scored("42", r"\boxed{42}", after="</think>").components == {"answered": 0.0}


def test_decimals_say_how_closely_numbers_are_compared() -> None:
    assert scored(r"\sqrt{2}", r"\boxed{1.41}", decimals=2).reward == 1.0
    assert scored(r"\sqrt{2}", r"\boxed{1.41}", decimals=6).reward == 0.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"solution": "42", "level": 1}, r"no field 'answer'.*its fields: level, solution"),
        ({"answer": None}, r"'answer' = 'None' holds no answer"),
        ({"answer": []}, r"'answer' = '\[\]' holds no answer"),
    ],
)
def test_a_row_without_a_right_answer_is_told_with_the_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        call_reward_function(function_of(MathReward(name="math")), "p", "42", fields)


def test_fields_may_be_called_as_the_arguments_are() -> None:
    fields = {"answer": 42, "prompt": "another", "response": "another"}

    assert call_reward_function(function_of(MathReward(name="math")), "p", "42", fields).reward == 1.0
