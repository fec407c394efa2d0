"""Line charts as SVG text, side by side: logarithmic upwards, straight lines, one legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 400, 300
LEFT, RIGHT, TOP, BOTTOM = 55, 15, 35, 45
LEGEND_ROW = 18


@dataclass(frozen=True)
class Line:
    """A named series of (x, y), both above 0."""

    name: str
    colour: str
    values: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False


@dataclass(frozen=True)
class Scale:
    """Maps low..high to start..end."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def at(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (value - low) / ((high - low) or 1) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            step = max(1, round((self.high - self.low) / 6))
            first = math.ceil(self.low / step) * step
            return [float(value) for value in range(first, math.floor(self.high) + 1, step)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def draw(charts: Sequence[Chart]) -> str:
    """An SVG document. Charts without values are left out."""
    shown = [chart for chart in charts if any(line.values for line in chart.lines)]
    names = {line.name: line.colour for chart in shown for line in chart.lines if line.values}
    width, height = WIDTH * max(1, len(shown)), HEIGHT + LEGEND_ROW * math.ceil(len(names) / 4) + 10
    font = 'font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {font}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, chart in enumerate(shown):
        parts += [f'<g transform="translate({number * WIDTH},0)">', *_chart(chart), "</g>"]
    for number, (name, colour) in enumerate(names.items()):
        x, y = 20 + number % 4 * (width - 20) / 4, HEIGHT + 12 + number // 4 * LEGEND_ROW
        parts.append(f'<rect x="{x:.0f}" y="{y - 4}" width="18" height="4" fill="{colour}"/>')
        parts.append(_text(x + 24, y + 2, name))
    return "\n".join([*parts, "</svg>\n"])


def _chart(chart: Chart) -> list[str]:
    xs, ys = zip(*(value for line in chart.lines for value in line.values), strict=True)
    x = Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT, chart.log_x)
    y = Scale(min(ys) * 0.8, max(ys) * 1.25, HEIGHT - BOTTOM, TOP, logarithmic=True)
    parts = [_text(WIDTH / 2, 18, chart.title, anchor="middle")]
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>')
        parts.append(_text(LEFT - 5, at + 4, f"{tick:g}", anchor="end"))
    across = sorted(set(xs)) if chart.log_x else x.ticks()
    parts += [_text(x.at(tick), HEIGHT - BOTTOM + 15, f"{tick:g}", anchor="middle") for tick in across]
    parts.append(_text(WIDTH / 2, HEIGHT - BOTTOM + 32, chart.x_label, anchor="middle"))
    parts.append(_text(-HEIGHT / 2, 14, chart.y_label, anchor="middle", turned=True))
    return [*parts, *(_line(line, x, y) for line in chart.lines if line.values)]


def _line(line: Line, x: Scale, y: Scale) -> str:
    points = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in line.values)
    return f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.6"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", turned: bool = False) -> str:
    turn = ' transform="rotate(-90)"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333"{turn}>{escape(text)}</text>'
