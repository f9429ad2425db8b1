"""What there is in a house: rooms with their receptacles, objects and lamps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

rooms: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "kitchen": {
        "fridge": (1, 1),
        "microwave": (1, 1),
        "sinkbasin": (1, 1),
        "cabinet": (1, 2),
        "drawer": (1, 1),
        "countertop": (1, 2),
        "stove": (1, 1),
        "diningtable": (1, 1),
        "bin": (1, 1),
    },
    "bedroom": {
        "bed": (1, 1),
        "desk": (1, 1),
        "nightstand": (1, 1),
        "drawer": (1, 2),
        "shelf": (1, 2),
        "wardrobe": (1, 1),
        "bin": (1, 1),
    },
    "living room": {
        "sofa": (1, 1),
        "armchair": (1, 2),
        "coffeetable": (1, 1),
        "tvstand": (1, 1),
        "drawer": (1, 1),
        "shelf": (1, 2),
        "bin": (1, 1),
    },
    "bathroom": {
        "sinkbasin": (1, 1),
        "bathtub": (1, 1),
        "cabinet": (1, 2),
        "basket": (1, 1),
        "shelf": (1, 1),
        "stool": (1, 1),
        "bin": (1, 1),
    },
}
"""Each room's kinds of receptacles, with fewest and most of them.

A room takes at most 16 turns to search: one for each receptacle, one more for each that is closed. Three rooms take at
most 38, which leaves 12 of 50 for what the task asks besides.
"""

can_close = frozenset({"fridge", "microwave", "cabinet", "drawer", "wardrobe"})
"""Receptacles with a door, closed at the beginning."""

holds_inside = can_close | {"sinkbasin", "bin", "bathtub", "basket"}
"""Receptacles in which things are; on the others they lie."""

room_objects: Mapping[str, tuple[str, ...]] = {
    "kitchen": (
        "apple",
        "bowl",
        "bread",
        "cup",
        "egg",
        "fork",
        "glass",
        "knife",
        "ladle",
        "lettuce",
        "mug",
        "pan",
        "peppershaker",
        "plate",
        "pot",
        "potato",
        "saltshaker",
        "spatula",
        "sponge",
        "spoon",
        "tomato",
        "winebottle",
    ),
    "bedroom": (
        "alarmclock",
        "book",
        "cd",
        "cellphone",
        "creditcard",
        "keychain",
        "laptop",
        "mug",
        "pen",
        "pencil",
        "pillow",
        "statue",
        "teddybear",
        "watch",
    ),
    "living room": (
        "book",
        "box",
        "creditcard",
        "keychain",
        "laptop",
        "magazine",
        "newspaper",
        "pillow",
        "plate",
        "remote",
        "statue",
        "vase",
        "watch",
    ),
    "bathroom": (
        "candle",
        "cloth",
        "comb",
        "handtowel",
        "soapbar",
        "soapbottle",
        "sponge",
        "toothbrush",
        "towel",
    ),
}

treatable: Mapping[str, frozenset[str]] = {
    "clean": frozenset(
        {
            "apple",
            "bowl",
            "cloth",
            "comb",
            "cup",
            "egg",
            "fork",
            "glass",
            "knife",
            "ladle",
            "lettuce",
            "mug",
            "pan",
            "plate",
            "pot",
            "potato",
            "soapbar",
            "spatula",
            "sponge",
            "spoon",
            "tomato",
            "toothbrush",
        }
    ),
    "heat": frozenset(
        {
            "apple",
            "bowl",
            "bread",
            "cup",
            "egg",
            "mug",
            "plate",
            "potato",
            "tomato",
        }
    ),
    "cool": frozenset(
        {
            "apple",
            "bowl",
            "bread",
            "cup",
            "egg",
            "glass",
            "lettuce",
            "mug",
            "pan",
            "plate",
            "pot",
            "potato",
            "tomato",
            "winebottle",
        }
    ),
}
"""Objects that can be cleaned, heated and cooled."""

tools: Mapping[str, str] = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The receptacle that each treatment needs."""

room_lamps: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "kitchen": {},
    "bedroom": {"desklamp": ("desk", "shelf"), "tablelamp": ("nightstand", "shelf")},
    "living room": {"floorlamp": ("sofa", "armchair"), "tablelamp": ("coffeetable", "shelf")},
    "bathroom": {},
}
"""Each room's lamps, with the receptacles at which they may stand."""

_plurals: Mapping[str, str] = {
    "glass": "glasses",
    "knife": "knives",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "box": "boxes",
    "watch": "watches",
    "toothbrush": "toothbrushes",
    "lettuce": "heads of lettuce",
    "bread": "loaves of bread",
}


def with_article(words: str) -> str:
    """`an apple`, `a mug`."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(kind: str) -> str:
    """Several objects of a kind."""
    return _plurals.get(kind, f"{kind}s")


def preposition(kind: str) -> str:
    """How things are with a kind of receptacle: in it or on it."""
    return "in" if kind in holds_inside else "on"
