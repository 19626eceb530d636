"""How the launchers of a run talk: addresses, signatures, heartbeats and the control channel."""
