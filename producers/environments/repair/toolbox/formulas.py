"""Formulas: brackets, and sums and products of whole numbers, computed from text."""

from __future__ import annotations

_strength = {"+": 1, "-": 1, "*": 2}
_closing = {")": "(", "]": "[", "}": "{"}


def is_balanced(text: str) -> bool:
    """Whether every bracket, round, square or curly, is closed by one of its kind, in the right order."""
    opened: list[str] = []
    for letter in text:
        if letter in _closing.values():
            opened.append(letter)
        elif letter in _closing and (not opened or opened.pop() != _closing[letter]):
            return False
    return not opened


def deepest(text: str) -> int:
    """How deep the round brackets of a text go at most."""
    depth = most = 0
    for letter in text:
        if letter == "(":
            depth += 1
            most = max(most, depth)
        elif letter == ")":
            depth -= 1
    return most


def tokens(text: str) -> list[str]:
    """Numbers, signs and round brackets of a formula; what is between them is left out."""
    result: list[str] = []
    for index, letter in enumerate(text):
        if letter.isdigit() and index > 0 and text[index - 1].isdigit():
            result[-1] += letter
        elif letter.isdigit() or letter in "+-*()":
            result.append(letter)
    return result


def postfix(text: str) -> list[str]:
    """The formula with each sign behind what it joins: `1 + 2 * 3` gives 1 2 3 * +; equal signs from left to right."""
    result: list[str] = []
    waiting: list[str] = []
    for part in tokens(text):
        if part == "(":
            waiting.append(part)
        elif part == ")":
            while waiting[-1] != "(":
                result.append(waiting.pop())
            waiting.pop()
        elif part in _strength:
            while waiting and _strength.get(waiting[-1], 0) >= _strength[part]:
                result.append(waiting.pop())
            waiting.append(part)
        else:
            result.append(part)
    return result + waiting[::-1]


def value(text: str) -> int:
    """What a formula of numbers, + - * and round brackets comes to."""
    stack: list[int] = []
    for part in postfix(text):
        if part not in _strength:
            stack.append(int(part))
            continue
        right, left = stack.pop(), stack.pop()
        if part == "+":
            stack.append(left + right)
        elif part == "-":
            stack.append(left - right)
        else:
            stack.append(left * right)
    return stack[0]
