"""The command line: arguments, help, refusals and wiring."""
