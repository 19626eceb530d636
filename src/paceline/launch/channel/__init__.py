"""How the launchers of a run talk: addresses, signatures, heartbeats and the control channel.

connection        a connection to the run's store that survives a network cut and keeps writes
                  until they arrive
connection_probe  probe the head's port: does it open, and if not, what can this node find out
                  about the reason
control_channel   the control channel: heartbeats and messages of a run's launchers, through
                  the run's store
heartbeats        record when each node's last heartbeat came, on a clock that runs only while
                  this process runs
liveness          prove that a launcher has ended, by an idle connection to the node that hosts
                  the store
reachability      try the addresses of other nodes: a small server that identifies its node,
                  and its clients
remote            what one node knows about the others in an attempt; the channel's thread
                  writes it
run_secret        obtain the run's secret, and refuse nodes that do not have it
silence           decide whether a silent node is lost, from the length of its silence and what
                  is proven
silence_watch     name silent nodes, and record lost ones, from the heartbeats that the control
                  channel records
surroundings      what a control channel needs from the launcher around it
"""
