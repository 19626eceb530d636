"""Rendezvous: open or reach the store, call the roll, and find out why nodes did not come."""
