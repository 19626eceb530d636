"""Rendezvous: open or reach the store, call the roll, and find out why nodes did not come.

gathering        watch the nodes between the roll call and the first attempt, and name a node
                 that dies then
handler          meet the other nodes of a run: torch's rendezvous on a port that is bound
                 before it is published
held_rendezvous  static rendezvous of torch's elastic agent, on a store whose port was bound
                 when chosen
node_wait        decide how long a launcher waits for nodes, and print what it waits for
notes            exchange notes through the shared folder while nodes wait, for the case of a
                 broken network
presence         decide from the nodes that have arrived whether the run can begin, or why it
                 cannot
roll_call        call the roll: nodes announce themselves in the store, and its host decides
                 who is there
store            host the run's store on a port that is already bound, or connect to the store
                 on the head
unreachable      decide why nodes did not meet, from connection probes and the nodes' notes
"""
