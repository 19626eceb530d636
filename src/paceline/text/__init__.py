"""Format text: lists, lines on a terminal, shell quoting; parse scripts. Standard library only."""
