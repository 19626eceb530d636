"""``paceline report``: one page, or a text, that shows what a run did and how fast.

facts                what is known of a run, as plain data
collect              reads a run folder
metrics              reads the numbers that a script has logged
measured_files       reads speed, bench and forecast, and doubts every value
speed                decides rates, the split of a step, efficiency
plots                what a plot is, and the names in it
regression           decides whether the second of two runs is slower, or its loss higher
sections             decides which plots there are, and the order of all
overview             decides the figures and the sentences
text                 renders for a terminal
drawing              renders plots for plotly, with their colours
command              the command, and the HTML page
"""

from paceline.measure.report.command import report

__all__ = ["report"]
