"""How the launchers of a run talk to each other: addresses, signatures, heartbeats and the control channel."""
