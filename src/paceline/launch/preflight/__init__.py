"""The preflight check: compare versions, script, interfaces, clocks and links of all nodes.

bandwidth    measure how fast the nodes are connected: one short all-reduce over gloo between
             launchers
comparison   compare the nodes before the ranks start: each posts its facts, the head decides,
             all print it
consistency  decide whether the nodes of a run are alike, and report their differences as
             findings
facts        gather the facts of a node that are compared: versions, script, GPUs, limits,
             interfaces
interfaces   choose the network interface of each node, and check the user's choice
"""
