"""The comparison of the nodes before ranks start: versions, script, interfaces, clocks, the link."""
