"""``paceline report``: one page, or a text, that shows what a run did and how fast.

facts                what is known of a run, as plain data
collect              reads a run folder, with metrics, speed_files, bench_files, untrusted
speed, scaling       decide rates, the split of a step, efficiency
plots, labels        what a plot is, and the names in it
training_plots, time_plots, scaling_plots, network_plots
                     decide which plots there are
overview, sections   decide the figures, the sentences and the order
text                 renders for a terminal
drawing, palette     render plots for plotly
page                 renders the HTML page
command              the command
"""

from paceline.measure.report.command import report

__all__ = ["report"]
