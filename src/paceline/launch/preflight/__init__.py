"""The preflight check: compare versions, script, interfaces, clocks and links of all nodes."""
