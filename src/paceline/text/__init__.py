"""Words for many things, lines on a terminal, quoting for a shell, syntax trees of scripts. Standard library only."""
