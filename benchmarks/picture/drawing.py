"""The pictures, as SVG: rewards over time with a line where a process was killed, and the live view. Pure."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from rich.console import Console

from rollog.run.view import RunFacts, picture

if TYPE_CHECKING:
    from benchmarks.picture.killed_demo import KilledDemo
    from consumers.progress import ProgressView

_width, _height = 860, 300
_left, _right, _top, _bottom = 52, 16, 44, 40
_colours = {"trainer": "#d55e00", "worker": "#009e73", "broker": "#cc79a7"}

# Without the fonts that rich would load from elsewhere.
_terminal = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="8" fill="#292929"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def curve(run: KilledDemo) -> str:
    """Reward of each step over seconds since the first one, and the kills."""
    last = max(at for at, _ in run.rewards)

    def x(seconds: float) -> float:
        return _left + (_width - _left - _right) * seconds / last

    def y(reward: float) -> float:
        return _top + (_height - _top - _bottom) * (1.0 - reward)

    points = " ".join(f"{x(at):.1f},{y(reward):.1f}" for at, reward in run.rewards)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_width} {_height}" '
            'font-family="sans-serif" font-size="12" fill="#222222">'
        ),
        f'<rect width="{_width}" height="{_height}" fill="#ffffff"/>',
        '<text x="12" y="20" font-size="14">Mean reward of each training step; dashed: a process is killed</text>',
        *(
            f'<line x1="{_left}" x2="{_width - _right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#dddddd"/>'
            f'<text x="{_left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
            for tick in (0.0, 0.25, 0.5, 0.75, 1.0)
        ),
        *(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_top}" y2="{_height - _bottom}" '
            f'stroke="{_colours.get(name, "#555555")}" stroke-width="1.5" stroke-dasharray="5 3"/>'
            f'<text x="{x(at) + 4:.1f}" y="{_top + 12}" fill="{_colours.get(name, "#555555")}">{escape(name)}</text>'
            for at, name in run.kills
        ),
        f'<polyline points="{points}" fill="none" stroke="#0072b2" stroke-width="2"/>',
        *(
            f'<circle cx="{x(at):.1f}" cy="{y(reward):.1f}" r="2.6" fill="#0072b2"/>'
            for at, reward in run.rewards
        ),
        f'<text x="{_left}" y="{_height - 12}">0 s</text>',
        f'<text x="{_width - _right}" y="{_height - 12}" text-anchor="end">{last:.0f} s since the first step</text>',
        "</svg>\n",
    ]
    return "\n".join(lines)


def live_view(view: ProgressView, run: str, num_steps: int, seconds: float) -> str:
    """What `rollog watch` shows, in 110 columns."""
    console = Console(width=110, record=True, file=io.StringIO(), force_terminal=True)
    facts = RunFacts(run=run, num_steps=num_steps, broker="127.0.0.1:9092", state_directory=".rollog")
    console.print(picture(facts, view, [], seconds))
    return console.export_svg(code_format=_terminal, unique_id="view")
