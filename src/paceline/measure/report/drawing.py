"""Turn plots into figures for plotly's JavaScript, which draws them in the browser. Pure.

A colour is written as ``@role``: the page replaces it by one of its light or its dark palette, and
``@role-ink`` by a shade of it in which text is readable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.measure.report.plots import Axis, Curve, Plot

NUM_RUN_COLOURS = 8
_HEIGHT, _TOP, _BOTTOM = 320, 34, 44  # pixels; buttons to zoom are above the plot
_FEW_DECADES, _MOST_DECADES = 2.0, 7.0  # of a logarithmic axis
_LARGEST = 1e300  # the difference of larger values may be no float
_LABEL_GAP = 16  # pixels between the labels of two curves
_MOST_LABELS = 8  # curves; more have a legend only
_LABEL_WIDTH, _LABEL_PIXELS = 24, 6.6  # characters of a label, and the width of one
_DASHES = {"line": "solid", "dashed": "dash", "dotted": "dot"}


def figure(plot: Plot) -> dict[str, Any]:
    """Return ``data`` and ``layout`` of a plot, the height in pixels in the layout."""
    return {
        "data": [trace for curve in plot.curves for trace in _traces(curve)],
        "layout": _layout(plot),
    }


def colour(role: str) -> str:
    """Return the name of a role's colour; colours of runs repeat."""
    name, _, number = role.partition("-")
    return (
        f"@run-{int(number) % NUM_RUN_COLOURS}" if name == "run" else f"@{role}".replace(" ", "-")
    )


def _traces(curve: Curve) -> list[dict[str, Any]]:
    if curve.form == "bar":
        return [_bar(curve)]
    if curve.form == "area":
        return [_area(curve)]
    is_band = bool(curve.low) and curve.form == "dotted"
    return [*(_band(curve) if is_band else ()), _line(curve, with_bars=not is_band)]


def _line(curve: Curve, *, with_bars: bool) -> dict[str, Any]:
    has_marks = curve.form == "dots" or bool(curve.low)
    dash = _DASHES.get(curve.form, "solid")
    trace = _base(curve) | {
        "type": "scatter",
        "mode": "markers" if curve.form == "dots" else "lines",
        "line": {
            "color": colour(curve.colour),
            "width": 2,
            "dash": dash,
        },
    }
    if has_marks:
        trace["marker"] = {"color": colour(curve.colour), "size": 8}
    if has_marks and with_bars and curve.form == "line":
        trace["mode"] = "lines+markers"
    if curve.low and with_bars:
        trace["error_y"] = _error_bars(curve)
    return trace


def _base(curve: Curve) -> dict[str, Any]:
    return {
        "x": list(curve.x),
        "y": list(curve.y),
        "name": _escaped(curve.name),
        "hovertemplate": "%{y:.4~g}<extra>%{fullData.name}</extra>",
        "showlegend": False,
    }


def _escaped(text: str) -> str:
    """Return a text in which plotly, which knows some HTML, sees no tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _error_bars(curve: Curve) -> dict[str, Any]:
    # plotly takes the lengths of bars, and not their ends; a gap in the values has none.
    values = [value if value is not None else 0.0 for value in curve.y]
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for high, value in zip(curve.high, values, strict=True)],
        "arrayminus": [value - low for low, value in zip(curve.low, values, strict=True)],
        "color": colour(curve.colour),
        "thickness": 1.5,
        "width": 4,
    }


def _band(curve: Curve) -> list[dict[str, Any]]:
    edge = {
        "type": "scatter",
        "mode": "lines",
        "x": list(curve.x),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    fill = {"fill": "tonexty", "fillcolor": f"{colour(curve.colour)}-band"}
    return [edge | {"y": list(curve.low)}, edge | {"y": list(curve.high)} | fill]


def _area(curve: Curve) -> dict[str, Any]:
    return _base(curve) | {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "parts",
        "line": {"width": 0.5, "color": "@page"},
        "fillcolor": colour(curve.colour),
    }


def _bar(curve: Curve) -> dict[str, Any]:
    marker = {"color": colour(curve.colour), "line": {"width": 0}}
    return _base(curve) | {"type": "bar", "marker": marker}


def _layout(plot: Plot) -> dict[str, Any]:
    y_range = _y_range(plot)
    annotations = _labels(plot, y_range)
    # A name that is written as "&lt;" takes less width than this; few names have such characters.
    width = max((len(label["text"]) for label in annotations), default=0)
    num_bars = max((len(curve.x) for curve in plot.curves if curve.form == "bar"), default=0)
    return {
        "height": _HEIGHT,
        "margin": {"l": 8, "r": round(16 + width * _LABEL_PIXELS), "t": _TOP, "b": _BOTTOM},
        "barmode": "stack",
        "bargap": max(0.35, 0.8 - 0.1 * num_bars),  # few bars are not wide
        "hovermode": "x unified",
        "xaxis": _x_axis(plot),
        "yaxis": _y_axis(plot.y, y_range),
        "annotations": annotations,
    }


def _axis(axis: Axis) -> dict[str, Any]:
    values: dict[str, Any] = {
        "title": {"text": _escaped(axis.title), "standoff": 8},
        "automargin": True,
        "type": "log" if axis.is_log else "linear",
        "zeroline": False,
    }
    if not axis.is_log:
        values |= {"tickformat": ",~g", "nticks": 6}
    if axis.ticks:
        labels = [_escaped(label) for label in axis.labels]
        values |= {"tickmode": "array", "tickvals": list(axis.ticks), "ticktext": labels}
    return values


def _x_axis(plot: Plot) -> dict[str, Any]:
    values = _axis(plot.x) | {"showgrid": False, "ticks": "outside", "ticklen": 4}
    if any(curve.form in ("bar", "dots") for curve in plot.curves):
        return values
    positions = [x for curve in plot.curves for x in curve.x]
    low, high = min(positions), max(positions)
    if plot.x.is_log and low > 0:
        low, high = math.log10(low), math.log10(high)
        margin = 0.04 * (high - low)
        return values | {"range": [low - margin, high + margin]}
    return values | {"range": [low, high if high > low else low + 1]}


def _y_axis(axis: Axis, y_range: tuple[float, float]) -> dict[str, Any]:
    """Return the vertical axis; its title is above the plot, where it needs no width."""
    values = _axis(axis) | {"range": list(y_range), "title": {"text": ""}}
    if not axis.is_log:
        return values
    # plotly takes the ends of a logarithmic axis as exponents, and its ticks as values.
    ticks = log_ticks(*y_range)
    labels = [_tick_text(tick) for tick in ticks]
    return values | {"tickmode": "array", "tickvals": ticks, "ticktext": labels}


def _tick_text(tick: float) -> str:
    for size, prefix in ((1e9, "G"), (1e6, "M")):
        if tick >= size:
            return f"{tick / size:,g}{prefix}"
    return f"{tick:,g}"


def log_ticks(
    low: float,  # exponent of the axis' lower end
    high: float,  # exponent of its upper end
) -> list[float]:
    """Return values to mark on a logarithmic axis: powers of ten, with 2 and 5 of each if few."""
    exponents = range(math.floor(low), math.ceil(high) + 1)
    every = max(1, round((high - low) / _MOST_DECADES))
    factors = (1, 2, 5) if high - low <= _FEW_DECADES else (1,)
    # Written in decimal, a number that a float cannot hold is 0 or infinite.
    ticks = [float(f"{factor}e{power}") for power in exponents[::every] for factor in factors]
    return [tick for tick in ticks if tick > 0 and low <= math.log10(tick) <= high]


def _y_range(plot: Plot) -> tuple[float, float]:
    """Return the range of the vertical axis, as plotly takes it: exponents if logarithmic."""
    values = [max(-_LARGEST, min(_LARGEST, value)) for value in _extent(plot)]
    if plot.y.is_log:
        values = [math.log10(value) for value in values if value > 0]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if plot.y.from_zero and not plot.y.is_log:
        low = min(low, 0.0)
    # Equal values would leave no height: their curve is drawn in the middle.
    margin = 0.06 * (high - low) or max(abs(high) * 0.1, 0.1)
    return (low if plot.y.from_zero and low == 0 else low - margin), high + margin


def _extent(plot: Plot) -> list[float]:
    """Return the values that must be visible."""
    ends = [value for curve in plot.curves for value in (*curve.low, *curve.high)]
    if any(curve.form in ("area", "bar") for curve in plot.curves):
        return ends + _stack_heights(plot.curves)
    return ends + [y for curve in plot.curves for y in curve.y if y is not None]


def _stack_heights(curves: Sequence[Curve]) -> list[float]:
    heights: dict[float, float] = {}
    for curve in curves:
        for x, y in zip(curve.x, curve.y, strict=True):
            heights[x] = heights.get(x, 0.0) + (y or 0.0)
    return list(heights.values())


def _labels(plot: Plot, y_range: tuple[float, float]) -> list[dict[str, Any]]:
    """Return the names of curves beside their ends, moved apart where they would touch."""
    labelled = [curve for curve in plot.curves if curve.label != ""]
    is_single = len(plot.curves) == 1
    has_place = all(curve.form not in ("bar", "dots") for curve in plot.curves)
    if is_single or not has_place or len(labelled) > _MOST_LABELS:
        return []
    ends = _ends(plot)
    pixels = [_pixel(end, plot.y, y_range) for _, end in ends]
    return [
        _label(curve, end, plot, shift=place - pixel)
        for (curve, end), pixel, place in zip(ends, pixels, spread(pixels), strict=True)
    ]


def _ends(plot: Plot) -> list[tuple[Curve, float]]:
    """Return each curve with the height of its end: of an area that of its middle."""
    ends = []
    height = 0.0
    for curve in plot.curves:
        last = next((y for y in reversed(curve.y) if y is not None), None)
        if last is None or (plot.y.is_log and last <= 0) or curve.label == "":
            continue
        if curve.form == "area":
            ends.append((curve, height + last / 2))
            height += last
        else:
            ends.append((curve, last))
    return ends


def _pixel(value: float, axis: Axis, y_range: tuple[float, float]) -> float:
    """Return the height of a value above the lower end of the axis, in pixels."""
    position = math.log10(value) if axis.is_log else value
    share = (position - y_range[0]) / (y_range[1] - y_range[0])
    return share * (_HEIGHT - _TOP - _BOTTOM)


def spread(
    pixels: Sequence[float],  # heights above the lower end of the plot, in pixels
    gap: float = _LABEL_GAP,  # the least distance of two
    height: float = _HEIGHT - _TOP - _BOTTOM,  # height of the plot; enough for all of them
) -> list[float]:
    """Return heights at least ``gap`` apart, near the given ones and in the same order.

    Heights that are too close are moved apart from their middle, and not beyond the plot, where the
    horizontal axis and the buttons are.
    """
    order = sorted(range(len(pixels)), key=lambda place: pixels[place])
    groups: list[list[float]] = []  # middle and number of labels that touch each other
    for place in order:
        groups.append([pixels[place], 1])
        # A group that grows moves its middle, and may then touch the one below it as well.
        while len(groups) > 1 and _touch(groups[-2], groups[-1], gap):
            middle, count = groups.pop()
            other = groups[-1]
            other[0] = (other[0] * other[1] + middle * count) / (other[1] + count)
            other[1] += count
    heights = [
        middle + (number - (count - 1) / 2) * gap
        for middle, count in groups
        for number in range(int(count))
    ]
    # Groups may stick out at either end: lifted from below, then pushed down from above.
    raised = _at_least(heights, gap)
    lowered = _at_least([height - value for value in reversed(raised)], gap)
    places = dict(zip(order, (height - value for value in reversed(lowered)), strict=True))
    return [places[place] for place in range(len(pixels))]


def _at_least(heights: Sequence[float], gap: float) -> list[float]:
    """Return ascending heights that begin at 0 or above, ``gap`` apart."""
    floor = 0.0
    raised = []
    for height in heights:
        raised.append(max(height, floor))
        floor = raised[-1] + gap
    return raised


def _touch(lower: Sequence[float], upper: Sequence[float], gap: float) -> bool:
    return upper[0] - lower[0] < (lower[1] + upper[1]) / 2 * gap


def _label(curve: Curve, end: float, plot: Plot, *, shift: float) -> dict[str, Any]:
    # On a logarithmic axis plotly places annotations by exponents too.
    label = {
        "text": _escaped(_shortened(curve.name if curve.label is None else curve.label)),
        "y": math.log10(end) if plot.y.is_log else end,
        "xanchor": "left",
        "showarrow": False,
        "font": {"color": f"{colour(curve.colour)}-ink"},
    }
    if _ends_early(curve, plot):
        position = math.log10(curve.x[-1])
        return label | {"x": position, "yanchor": "top", "xshift": 8, "yshift": -4}
    beside = {"xref": "paper", "x": 1, "xshift": 6}
    return label | beside | {"yanchor": "middle", "yshift": round(shift, 1)}


def _shortened(name: str) -> str:
    return name if len(name) <= _LABEL_WIDTH else f"{name[: _LABEL_WIDTH - 1]}…"


def _ends_early(curve: Curve, plot: Plot) -> bool:
    """Return whether a curve ends in the left half of a logarithmic axis, as a bench does."""
    if not plot.x.is_log:
        return False
    last = max(other.x[-1] for other in plot.curves)
    return math.log(curve.x[-1]) < math.log(last) / 2


# role: fill and ink on a light page, fill and ink on a dark page
_ROLES: Mapping[str, tuple[str, str, str, str]] = {
    "run-0": ("#0072b2", "#0067a1", "#4ba9e8", "#6fbdf2"),
    "run-1": ("#d55e00", "#b04d00", "#ff8a3d", "#ff9d5c"),
    "run-2": ("#009e73", "#00755a", "#2ecc9a", "#4fd8ad"),
    "run-3": ("#cc79a7", "#a1487a", "#e59bc6", "#ecafd2"),
    "run-4": ("#e69f00", "#8a5f00", "#f2b43c", "#f5c362"),
    "run-5": ("#56b4e9", "#1f709f", "#8cd0ff", "#a5daff"),
    "run-6": ("#7a5195", "#7a5195", "#b79ced", "#c6b1f2"),
    "run-7": ("#7f7f7f", "#666666", "#a6adb8", "#b8bec8"),
    "data": ("#e69f00", "#8a5f00", "#e69f00", "#f2b43c"),
    "forward": ("#56b4e9", "#1f709f", "#56b4e9", "#8cd0ff"),
    "backward": ("#0072b2", "#0067a1", "#2285c7", "#6fbdf2"),
    "optimizer": ("#009e73", "#00755a", "#17ab80", "#4fd8ad"),
    "other-code": ("#9aa3af", "#5f6873", "#8a94a2", "#b8bec8"),
    "communication": ("#cc79a7", "#a1487a", "#cc79a7", "#ecafd2"),
    "waiting": ("#d55e00", "#b04d00", "#e2702a", "#ff9d5c"),
    "ideal": ("#9aa3af", "#5f6873", "#8a94a2", "#b8bec8"),
    "forecast": ("#7a5195", "#7a5195", "#b79ced", "#c6b1f2"),
}
_PAGES: Mapping[str, Mapping[str, str]] = {
    "light": {"page": "#ffffff", "text": "#1b2028", "text-soft": "#5b6472", "grid": "#e4e7eb"},
    "dark": {"page": "#12161c", "text": "#e8ecf1", "text-soft": "#a3adba", "grid": "#2a313b"},
}
_BAND_OPACITY = "33"  # two hexadecimal digits: 20 %


def palettes() -> dict[str, dict[str, str]]:
    """Return the colour of each role, by theme. A role ends with ``-ink`` or ``-band``, or not."""
    return {theme: _palette(theme, place) for theme, place in (("light", 0), ("dark", 2))}


def _palette(theme: str, place: int) -> dict[str, str]:
    colours = dict(_PAGES[theme])
    for role, shades in _ROLES.items():
        colours[role] = shades[place]
        colours[f"{role}-ink"] = shades[place + 1]
        colours[f"{role}-band"] = shades[place] + _BAND_OPACITY
    return colours
