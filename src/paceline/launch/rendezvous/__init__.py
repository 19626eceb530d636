"""How nodes meet: the store, the roll call, and why nodes did not come."""
