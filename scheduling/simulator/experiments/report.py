"""The report of experiments: one HTML file without references to other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from scheduling.simulator.experiments.charts import bar_chart, format_value, line_chart
from scheduling.simulator.experiments.experiment import Experiment, Figures, Row
from scheduling.simulator.experiments.trials import TrialStore

FILE = "report.html"

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 900px; margin: 2em auto; color: #202124; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .3em .8em; border-bottom: 1px solid #dadce0; }
th { text-align: left; } td.number { text-align: right; } h2 { margin-top: 2.5em; } svg { max-width: 100%; }
"""
_HOW = (
    "Each result is the 90th percentile of the trials, and the range of all trials is beside it (§5.1). Each trial"
    " removes machines in another random order, and packs the work from scratch with the production scheduler. At most"
    " 0.2 % of the tasks may stay pending. A grey area in a chart is the paper's range."
)


def results_of(experiment: Experiment, store: TrialStore) -> dict[str, list[Figures]]:
    """Return the figures of the finished trials of an experiment, by case."""
    return {case: store.of(case) for case in experiment.cases}


def conclusion(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return the sentences that compare our numbers with the paper's, and say why they may differ."""
    compared = [row for row in rows if row.paper_low is not None]
    verdicts = [f"Ours, {row.label}: {format_value(row.value)} {row.unit}, {row.verdict()}." for row in compared]
    return " ".join([*verdicts, experiment.differs])


def write_report(
    folder: Path, experiments: Sequence[Experiment], store: TrialStore, *, described: str
) -> dict[str, list[Row]]:
    """Write the report into `folder`, and return the rows of each experiment by its name. `described`: a sentence about
    the cell.
    """
    sections: list[str] = []
    found: dict[str, list[Row]] = {}
    for experiment in experiments:
        results = results_of(experiment, store)
        found[experiment.name] = experiment.rows(results)
        sections.append(_section(experiment, found[experiment.name], results))
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Experiments of the Borg paper</title>'
        f"<style>{_STYLE}</style></head><body><h1>Experiments of the Borg paper (§5)</h1>"
        f"<p>{escape(described)}</p><p>{escape(_HOW)}</p>{''.join(sections)}</body></html>\n"
    )
    target = folder / FILE
    part = target.with_suffix(".part")
    part.write_text(page)
    part.replace(target)
    return found


def _section(experiment: Experiment, rows: Sequence[Row], results: Mapping[str, Sequence[Figures]]) -> str:
    trials = ", ".join(f"{case}: {len(results[case])}" for case in experiment.cases)
    parts = [
        f"<h2>Figure {experiment.figure}: {escape(experiment.title)}</h2>",
        f"<p><b>The paper:</b> {escape(experiment.paper)}</p>",
        f"<p><b>Here:</b> {escape(conclusion(experiment, rows))}</p>",
        _table(rows),
        *(bar_chart(list(same)) for _, same in groupby(rows, key=lambda row: row.unit)),
        *(f"<h3>{escape(chart.title)}</h3>{line_chart(chart)}" for chart in experiment.charts(results)),
        f"<p>Trials: {escape(trials)}.</p>",
    ]
    return "".join(parts)


def _table(rows: Sequence[Row]) -> str:
    lines = [
        f"<tr><td>{escape(row.label)}</td><td class=number>{format_value(row.value)}</td>"
        f"<td class=number>{format_value(row.low)} to {format_value(row.high)}</td>"
        f"<td>{escape(row.unit)}</td><td>{escape(row.verdict())}</td></tr>"
        for row in rows
    ]
    head = "<tr><th></th><th>90th percentile</th><th>range</th><th>unit</th><th>compared</th></tr>"
    return f"<table>{head}{''.join(lines)}</table>"
