"""The error texts of libraries, and the fault that each of them means."""
