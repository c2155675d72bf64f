"""The figures of an evaluation: accuracy with its interval, and the cost of answers, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..load.output import COLOURS, SHAPES, save_picture, table
from .interval import Interval, wilson
from .results import Record

UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Points:
    """The points of one metric: problems that are right, or instructions that are followed."""

    right: int
    count: int

    @property
    def share(self) -> float:
        return self.right / self.count

    @property
    def interval(self) -> Interval:
        return wilson(self.right, self.count)


@dataclass(frozen=True, slots=True)
class Tally:
    """One decoder's answers.

    `tokens` counts each answer up to its first end token, which is left out. `script_tokens` counts as the papers'
    scripts do: the text up to the first stop string, read by the tokenizer again. `wall_s` is the time in which the
    answers of this run came, `fresh_tokens` are theirs. None: the server does not say, or no answer is of this run.
    """

    decoder: str
    metrics: Mapping[str, Points]
    answers: int
    tokens: int
    script_tokens: int | None
    forwards: int | None
    computed: int | None
    cut: int
    answer_s: float
    fresh_tokens: int
    wall_s: float

    def per_forward(self, tokens: int | None) -> float | None:
        return tokens / self.forwards if tokens is not None and self.forwards else None

    @property
    def computed_per_token(self) -> float | None:
        return self.computed / self.tokens if self.computed is not None and self.tokens else None

    @property
    def together(self) -> float | None:
        """Tokens a second of all requests at once."""
        return self.fresh_tokens / self.wall_s if self.fresh_tokens and self.wall_s else None

    def figures(self) -> Record:
        metrics = {
            name: {
                "right": points.right,
                "count": points.count,
                "accuracy": round(points.share, 4),
                "interval_95": [round(bound, 4) for bound in points.interval],
            }
            for name, points in self.metrics.items()
        }
        return {
            "decoder": self.decoder,
            "answers": self.answers,
            "metrics": metrics,
            "forwards": self.forwards,
            "tokens": self.tokens,
            "script_tokens": self.script_tokens,
            "tokens_per_forward": _rounded(self.per_forward(self.tokens)),
            "script_tokens_per_forward": _rounded(self.per_forward(self.script_tokens)),
            "computed_per_token": _rounded(self.computed_per_token),
            "answers_cut_at_max_tokens": self.cut,
            "tokens_per_s_of_one_request": _rounded(self.tokens / self.answer_s if self.answer_s else None),
            "tokens_per_s_together": _rounded(self.together),
        }


def tally(decoder: str, records: Sequence[Record], fresh_tokens: int, wall_s: float) -> Tally:
    """Sum up the records of a decoder, of which there is one at least."""
    names = dict.fromkeys(name for record in records for name in record["points"])
    points = {name: [record["points"][name] for record in records] for name in names}
    return Tally(
        decoder=decoder,
        metrics={
            name: Points(sum(right for right, _ in all_), sum(of for _, of in all_)) for name, all_ in points.items()
        },
        answers=len(records),
        tokens=sum(record["tokens"] for record in records),
        script_tokens=_sum(records, "script_tokens"),
        forwards=_sum(records, "forwards"),
        computed=_sum(records, "computed"),
        cut=sum(record["finish"] == "length" for record in records),
        answer_s=sum(record["seconds"] for record in records),
        fresh_tokens=fresh_tokens,
        wall_s=wall_s,
    )


def _sum(records: Sequence[Record], name: str) -> int | None:
    values = [record[name] for record in records]
    return None if None in values else sum(values)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _shown(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def tabulated(tallies: Sequence[Tally]) -> str:
    metrics = [*tallies[0].metrics]
    head = ["decoder", "answers"]
    for name in metrics:
        head += [name, "95 % interval"]
    head += ["forwards", "tokens/forward", "by scripts", "computed/token", "cut", "tokens/s each", "together"]
    columns: tuple[Callable[[Tally], str], ...] = (
        lambda t: _shown(None if t.forwards is None else t.forwards / t.answers, 2),
        lambda t: _shown(t.per_forward(t.tokens), 2),
        lambda t: _shown(t.per_forward(t.script_tokens), 2),
        lambda t: _shown(t.computed_per_token, 1),
        lambda t: str(t.cut),
        lambda t: _shown(t.tokens / t.answer_s if t.answer_s else None, 0),
        lambda t: _shown(t.together, 0),
    )
    rows = []
    for one in tallies:
        row = [one.decoder, str(one.answers)]
        for name in metrics:
            points = one.metrics[name]
            row += [f"{points.share:.3f}", "{:.3f}-{:.3f}".format(*points.interval)]
        rows.append([*row, *(show(one) for show in columns)])
    return table(head, rows)


def draw(tallies: Sequence[Tally], title: str, path: Path) -> None:
    """Draw accuracy over tokens a forward as a PNG: a curve for each decoder, through its settings. Needs matplotlib.
    Raises `ValueError` if no forwards are known."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = _curves(tallies)
    figure = Figure(figsize=(7, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    metric = next(iter(tallies[0].metrics))
    for number, (name, those) in enumerate(curves.items()):
        points = [one.metrics[metric] for one in those]
        shares = [point.share for point in points]
        axes.errorbar(
            [one.per_forward(one.tokens) for one in those],
            shares,
            yerr=[
                [max(0.0, point.share - point.interval.low) for point in points],
                [max(0.0, point.interval.high - point.share) for point in points],
            ],
            fmt=f"{SHAPES[number % len(SHAPES)]}-",
            color=COLOURS[number % len(COLOURS)],
            capsize=4,
            label=name,
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens a forward")
    axes.set_ylabel(f"{metric}, 95 % interval")
    axes.set_title(f"{title} (higher and further right is better)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_picture(figure, path)


def _curves(tallies: Sequence[Tally]) -> dict[str, list[Tally]]:
    """The tallies of each decoder's name, by tokens a forward."""
    found: dict[str, list[tuple[float, Tally]]] = {}
    for one in tallies:
        rate = one.per_forward(one.tokens)
        if rate is None:
            raise ValueError("--plot needs the forwards of answers, which this server does not report")
        found.setdefault(one.decoder.partition(":")[0], []).append((rate, one))
    return {name: [one for _, one in sorted(those, key=lambda pair: pair[0])] for name, those in found.items()}
